# Test programs that share a guest; the one that takes the device away comes last. The contract, which leaves it broken,
# has a guest of its own. Every program's name comes before its output, and its status after.
began() { echo "== $1"; }
ended() { echo "== status $?"; }
export CMOCKA_MESSAGE_OUTPUT=TAP

began memory_of_the_caller; timeout 100 ./test_registered; ended
ip link add dummy1 type dummy; ip link set dummy1 mtu 4200 up; ip addr add 10.78.0.1/24 dev dummy1
rdma link add rxe1 type rxe netdev dummy1
began gpu_direct; export RDMA_SECOND=10.78.0.1; timeout 250 ./test_direct && timeout 250 ./test_direct_ends; ended
rdma link delete rxe1; ip link delete dummy1
began device_removed; timeout 30 ./test_transport_rdma device_removed; ended
