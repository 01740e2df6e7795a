/* rdma_auto.h - the transport that chooses, where it chooses RDMA, and where it cannot after all. */
#ifndef TRIB_TESTS_RDMA_AUTO_H
#define TRIB_TESTS_RDMA_AUTO_H

#define RDMA_CONNECTING_MAX 20u /* the guest's processor may have little time */

/* The number of tests that failed; ip: IPv4, a device's. */
int trib_rdma_auto_run(const char *ip);

#endif
