/*
 * store_etcd.h - etcd as the store of a job (engine/job/store.h), by the JSON gateway of its API, version 3.
 *
 * Requests are made one after the other on a thread of its own, each within 2 s, at one of the hosts after the other.
 * The keys are PREFIX/JOB/epoch, the record, and PREFIX/JOB/coordinator, the sign, which has a lease.
 */
#ifndef TRIB_API_ENV_STORE_ETCD_H
#define TRIB_API_ENV_STORE_ETCD_H

#include "build_config.h"
#include "engine/job/store.h"

#if TRIB_HAVE_LIBCURL
/* hosts: "host:port", or several with commas. */
TRIB_CHECKED trib_status trib_store_etcd_open(const char *hosts, const char *prefix, const char *job, void **store_out,
                                              trib_error *error);
/* Stops the thread if it runs. NULL is fine. */
void trib_store_etcd_free(void *store);
extern const trib_store_ops trib_store_etcd_ops;
#endif

#endif
