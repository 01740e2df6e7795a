# The jobs that share a guest.
# Every job's name comes before its output, and its status after.
began() { echo "== $1"; }
ended() { echo "== status $?"; }
digits() { ./tributary run -n 2 "$@" -- ./digits --epochs 4 --data digits.csv; }

# chosen COMMAND: runs a job whose server belongs to another user, so shared memory does not reach it. COMMAND goes
# before the server's command line. The workers check a sum of each size; a training would compute gradients most of the
# time.
port=12000 sums='./tributary bench --sizes 4K,1M --iters 10'
chosen() {
    port=$((port + 1))
    export TRIB_WORKERS=2 TRIB_SERVERS=1 TRIB_TOKEN=secret-of-these-hosts TRIB_LOG=info TRIB_LISTEN=${rails:-$RDMA_IP}
    export TRIB_COORDINATOR=$RDMA_IP:$port
    su -s /bin/sh nobody -c "$1 ./tributary server" 2>&1 & server=$!
    for rank in 0 1; do TRIB_RANK=$rank $sums > rank$rank 2>&1 & eval rank$rank=$!; done
    wait $rank0; status=$?; wait $rank1 || status=$?; wait $server || status=$?
    cat rank0 rank1
    unset TRIB_WORKERS TRIB_SERVERS TRIB_TOKEN TRIB_LISTEN TRIB_COORDINATOR TRIB_LOG
    return $status
}

began auto_chooses_rdma; TRIB_TRANSPORT=auto chosen; ended
began auto_does_without_rdma; TRIB_TRANSPORT=auto chosen 'ulimit -l 64;'; ended
ip link add dummy1 type dummy; ip link set dummy1 mtu 4200 up; ip addr add 10.78.0.1/24 dev dummy1
rdma link add rxe1 type rxe netdev dummy1
began two_rails; TRIB_REACTORS=2 TRIB_TRANSPORT=auto rails=$RDMA_IP,10.78.0.1 chosen; ended
rdma link delete rxe1; ip link delete dummy1
began a_rail_is_gone; TRIB_REACTORS=2 TRIB_TRANSPORT=auto rails=$RDMA_IP,10.78.0.1 chosen; ended
export TRIB_TRANSPORT=rdma
began digits_over_rdma; digits -s 2 --host $RDMA_IP; ended
began no_address_of_a_device; TRIB_JOIN_TIMEOUT=2 digits; ended
began too_little_memory_may_be_locked
(ulimit -l 64; su -s /bin/sh nobody -c "./tributary run -n 1 -s 1 --host $RDMA_IP -- ./digits --data digits.csv"); ended
rdma link delete $RDMA_DEV
began no_device; digits; ended
