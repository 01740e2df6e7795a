# Runs on both of two connected hosts; the coordinator is on the first, the server on the second.
began() { echo "== $1_$RDMA_HOST"; }
ended() { echo "== status $?"; }
i=0; until ping -c 1 -W 1 $RDMA_PEER > /dev/null; do i=$((i+1)); [ $i -lt 100 ] || break; done
export TRIB_WORKERS=2 TRIB_SERVERS=1 TRIB_TOKEN=secret-of-these-hosts
export TRIB_LISTEN=$RDMA_IP TRIB_RANK=$RDMA_HOST TRIB_LOG=info
export TRIB_COORDINATOR=10.77.0.1:12001
began learns
[ $RDMA_HOST = 0 ] || ./tributary server > server 2>&1 &
./digits --epochs 4 --data digits.csv 2>&1; status=$?; wait; (exit $status); ended
# An attempt over RDMA has a part of this time, so a slow guest would take TCP where it has to learn.
export TRIB_COORDINATOR=10.77.0.1:12002 TRIB_PEER_TIMEOUT=4
began machine_lost
./digits --epochs 300 --data digits.csv > rank 2>&1 & rank=$!
if [ $RDMA_HOST = 0 ]; then
    ./tributary server > server 2>&1
    at=$(cut -d. -f1 /proc/uptime); wait $rank; status=$?
    echo "after $(($(cut -d. -f1 /proc/uptime) - at)) s: $(grep -v '^epoch' server | tail -n 1)"
    grep -v ^epoch rank; (exit $status)
else
    i=0; until grep -q 'over RDMA' rank; do sleep 0.1; i=$((i+1)); [ $i -lt 600 ] || break; done
    sleep 1; echo 0 > /dev/ttyS1; echo o > /proc/sysrq-trigger; sleep 60 # from here on this host is silent
fi
ended
[ $RDMA_HOST = 1 ] || exit 0
