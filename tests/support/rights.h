/* rights.h - sends a message with a descriptor on a Unix socket. */
#ifndef TRIB_TESTS_RIGHTS_H
#define TRIB_TESTS_RIGHTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

/* fd: the descriptor, or -1 for none. */
static inline void say_with(int to, const void *bytes, size_t size, int fd)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    _Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(sizeof fd)] = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    assert_int_equal(sendmsg(to, &message, MSG_NOSIGNAL), size);
}

#endif
