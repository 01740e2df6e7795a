# Runs on both of two hosts with two cables. A rail fails on the first host and comes back, then the other one fails on
# the second host; at the end both fail.
began() { echo "== $1_$RDMA_HOST"; }
ended() { echo "== status $?"; }
for peer in $RDMA_PEER 10.78.0.${RDMA_PEER##*.}; do
    i=0; until ping -c 1 -W 1 $peer > /dev/null; do i=$((i+1)); [ $i -lt 100 ] || break; done
done
export TRIB_WORKERS=2 TRIB_SERVERS=1 TRIB_TOKEN=secret-of-these-hosts TRIB_RANK=$RDMA_HOST TRIB_LOG=info
says() {
    i=0
    while [ $(grep -c "$1" rank) -lt $2 ]; do
        sleep 0.1; i=$((i+1))
        [ $i -lt 1200 ] && kill -0 $rank || { echo "never said $2 times: $1"; break; }
    done
}
rails() {
    export TRIB_LISTEN=$RDMA_IP,$RDMA_IP2 TRIB_REACTORS=2 TRIB_COORDINATOR=10.77.0.1:$1,10.78.0.1:$1 TRIB_PEER_TIMEOUT=8
    export TRIB_JOIN_TIMEOUT=300 # the first host begins later: it trains once more by itself
    : > rank # or the output of the previous job would be read
    [ $RDMA_HOST = 0 ] || ./tributary server > server 2>&1 &
    ./digits --epochs $2 --data digits.csv > rank 2>&1 & rank=$!
}
began rails
rails 12003 $EPOCHS
if [ $RDMA_HOST = 0 ]; then
    says '^epoch' 1; ip link set $RDMA_LINK down; says 'is made again' 2; says '^epoch' 2; ip link set $RDMA_LINK up
else
    says 'is made again' 2; until ping -c 1 -W 1 10.77.0.1 > /dev/null; do kill -0 $rank || break; done
    kill -0 $rank || echo "never said: the job ended before the other device failed"; ip link set $RDMA_LINK2 down
fi
wait $rank; status=$?; cat rank; wait; (exit $status); ended
ip link set $RDMA_LINK2 up
export TRIB_TRANSPORT=tcp # this kernel's soft-RoCE makes no more connections once its link was down
began no_rail_left
rails 12004 100
[ $RDMA_HOST = 1 ] || { says '^epoch' 1; ip link set $RDMA_LINK down; ip link set $RDMA_LINK2 down; }
at=$(cut -d. -f1 /proc/uptime)
wait $rank; status=$?; echo "after $(($(cut -d. -f1 /proc/uptime) - at)) s"
grep -v ^epoch rank; wait; (exit $status); ended
