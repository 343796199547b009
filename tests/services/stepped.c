/* Wall time as a file says: LD_PRELOAD this, with STEPPED_CLOCK the path of a file that holds the
   seconds to be added, an int64. The monotonic clock and the kernel's times of files stay. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *added;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("STEPPED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        abort();
    void *found = mmap(NULL, sizeof *added, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED)
        abort();
    added = found;
}

int clock_gettime(clockid_t which, struct timespec *out) {
    int failed = (int)syscall(SYS_clock_gettime, which, out);
    if (!failed && added && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        out->tv_sec += *added;
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
