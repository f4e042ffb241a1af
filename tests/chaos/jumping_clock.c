/* Preloaded, it adds to the wall clock of a process the seconds that the file named by JUMPING_CLOCK holds as a double.
 *
 * Clocks that count from the boot are left alone, as on a machine whose administrator sets the time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile double *jump;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find_jump(void) {
    const char *path = getenv("JUMPING_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *found = mmap(NULL, sizeof *jump, PROT_READ, MAP_SHARED, file, 0);
        jump = found == MAP_FAILED ? NULL : found;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real_clock_gettime)
        real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(clock, time);
    if (result == 0 && jump && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        time->tv_sec += (time_t)*jump;
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *stored) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (stored)
        *stored = now.tv_sec;
    return now.tv_sec;
}
