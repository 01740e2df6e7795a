/* rdma_auto.h - the transport that chooses, where it chooses RDMA, and where it cannot after all. */
#ifndef TRIB_TESTS_RDMA_AUTO_H
#define TRIB_TESTS_RDMA_AUTO_H

#define RDMA_CONNECTING_MAX 20u /* the guest's processor may have little time */

/* Returns the number of tests that failed. ip: the IPv4 address of a device. */
int trib_rdma_auto_run(const char *ip);

#endif
