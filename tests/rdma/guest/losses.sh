# Jobs of which a member is lost, or the network. They have a guest of their own, and the one that breaks it comes last.
# Every job's name comes before its output, and its status after.
began() { echo "== $1"; }
ended() { echo "== status $?"; }
now() { cut -d. -f1 /proc/uptime; }

lives() { grep -hs '^State:' /proc/$1/task/*/status | grep -qv Z; }

# ends NAME...: prints how and when each member ends, which all of them do at the same time. A process cannot end if the
# kernel holds one of its connections; its last output must do.
ends() {
    left="$*"
    while [ -n "$left" ]; do
        running=
        for name in $left; do
            eval pid=\$$name
            if ! lives $pid; then wait $pid; status=$?
            elif [ $(now) -ge $((at + 45)) ]; then status=kept
            else running="$running $name"; continue; fi
            echo "member $name: status $status, after $(($(now) - at)) s: $(tail -n 1 $name)"
        done
        left=$running; sleep 1 # to look is work for an emulated machine
    done
}

# lose VICTIM COMMAND: runs a job with named members, of which one is lost in the middle. Prints how the others end.
port=12000
lose() {
    port=$((port + 1))
    export TRIB_WORKERS=2 TRIB_SERVERS=2 TRIB_TOKEN=secret-of-these-hosts TRIB_PEER_TIMEOUT=6
    export TRIB_LOG=error TRIB_LISTEN=$RDMA_IP
    export TRIB_COORDINATOR=$RDMA_IP:$port
    rm -f rank0 # or the output of the previous job would be read
    ./tributary server > server0 2>&1 & server0=$!
    ./tributary server > server1 2>&1 & server1=$!
    TRIB_RANK=0 ./digits --epochs 10 --data digits.csv > rank0 2>&1 & rank0=$!
    TRIB_RANK=1 ./digits --epochs 10 --data digits.csv > rank1 2>&1 & rank1=$!
    until grep -qs '^epoch' rank0; do
        sleep 0.1; kill -0 $rank0 2> /dev/null || { tail -n 5 server0 server1 rank0 rank1; return 9; }
    done
    victim=; [ $1 = nobody ] || eval victim=\$$1
    at=$(now)
    eval "$2"
    echo "lost pid $victim"
    ends $(echo server0 server1 rank0 rank1 | sed "s/$1//")
    [ -z "$victim" ] || { kill -9 $victim; wait $victim; }
    unset TRIB_WORKERS TRIB_SERVERS TRIB_TOKEN TRIB_PEER_TIMEOUT TRIB_LISTEN TRIB_COORDINATOR TRIB_LOG
    return 0
}

export TRIB_TRANSPORT=rdma
began server_killed; lose server1 'kill -KILL $victim'; ended
began worker_killed; lose rank1 'kill -KILL $victim'; ended
began server_stopped; lose server1 'kill -STOP $victim'; ended
began network_lost; lose nobody 'ip link set $RDMA_LINK down'; ended
