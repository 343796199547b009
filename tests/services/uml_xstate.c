/* User-mode Linux up to 6.12 on a processor with AMX: preloaded, this lets it set registers.

   It keeps 2696 bytes of a process's extended state (up to AVX-512 and PKRU, fixed when it was
   compiled). Since Linux 5.16 the host sets the state only as a whole, which with AMX's tiles is
   11008 bytes: EFAULT, and the guest's kernel panics at its first process. Here the part that it
   knows is laid over the whole; nothing in the guest uses tiles. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { GETREGSET = 0x4204, SETREGSET = 0x4205, X86_XSTATE = 0x202 };

typedef long ptrace_call(int request, pid_t pid, void *address, void *data);

static long set_state(ptrace_call *host, pid_t pid, const struct iovec *part)
{
    static char whole[1 << 16];  /* zeros behind the part: tiles in their first state */
    static size_t size;
    void *which = (void *)(long)X86_XSTATE;
    struct iovec state = {whole, sizeof whole};
    if (!size && host(GETREGSET, pid, which, &state) == 0) {
        size = state.iov_len;
        memset(whole, 0, sizeof whole);
    }
    if (part->iov_len >= size)
        return host(SETREGSET, pid, which, (void *)part);
    memcpy(whole, part->iov_base, part->iov_len);
    state.iov_len = size;
    return host(SETREGSET, pid, which, &state);
}

long ptrace(int request, pid_t pid, void *address, void *data)
{
    static ptrace_call *host;
    if (!host)
        host = (ptrace_call *)dlsym(RTLD_NEXT, "ptrace");
    if (request != SETREGSET || (long)address != X86_XSTATE)
        return host(request, pid, address, data);
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);  /* a handler may switch tasks, and come here */
    long result = set_state(host, pid, data);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result;
}
