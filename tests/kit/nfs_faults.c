/* A file system that behaves like NFS on a bad day, for LD_PRELOAD. Calls on paths below FAULTS_UNDER fail now and then:
   one in FAULTS_EVERY with ESTALE, EIO or EINTR (what may be interrupted), or with fewer bytes than asked for; record
   locks fail with ENOLCK where FAULTS_LOCKS is "none", and are granted without being taken where it is "lost".
   A process that has seen FAULTS_MOST faults sees no more (0: no limit). FAULTS_SEED says which calls fail, counted over
   all threads, and nothing else does: the third fault comes at the same call on every machine. A line for each fault goes
   to FAULTS_LOG, if that is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long state;
static int seen;

static void *found(void **real, const char *name) {
    if (!*real) *real = dlsym(RTLD_NEXT, name);
    return *real;
}
#define REAL(name) ((__typeof__(&name))found(&real_##name, #name))
#define DECLARE(name) static void *real_##name

static int below(const char *path) {
    const char *under = getenv("FAULTS_UNDER");
    size_t n = under ? strlen(under) : 0;
    return n && path && strncmp(path, under, n) == 0 && (path[n] == 0 || path[n] == '/');
}

static int below_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

static int draw(const char *what) {
    const char *every = getenv("FAULTS_EVERY"), *seed = getenv("FAULTS_SEED"), *log = getenv("FAULTS_LOG");
    const char *most = getenv("FAULTS_MOST");
    int n = every ? atoi(every) : 0, limit = most ? atoi(most) : 0, hit, saved = errno;
    if (n <= 0) return 0;
    pthread_mutex_lock(&lock);
    if (!state) state = 88172645463325252ull ^ ((seed ? strtoull(seed, 0, 10) : 0) + 1) * 2654435761ull;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    hit = state % n == 0 && (!limit || seen < limit) ? 1 + (state >> 32) % 3 : 0;
    seen += hit != 0;
    pthread_mutex_unlock(&lock);
    if (hit && log) {
        FILE *file = fopen(log, "a");
        if (file) fprintf(file, "%s\n", what), fclose(file);
    }
    errno = saved;
    return hit;
}

#define FAIL(what, value) do { int hit_ = draw(what); if (hit_) { errno = hit_ == 1 ? EIO : ESTALE; return value; } } while (0)

DECLARE(open); DECLARE(open64); DECLARE(openat); DECLARE(read); DECLARE(pread); DECLARE(pread64); DECLARE(write);
DECLARE(pwrite); DECLARE(pwrite64); DECLARE(writev); DECLARE(fsync); DECLARE(rename); DECLARE(link); DECLARE(unlink);
DECLARE(mkdir); DECLARE(ftruncate); DECLARE(ftruncate64); DECLARE(fcntl); DECLARE(fcntl64); DECLARE(stat);

#define MODE int mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list ap; va_start(ap, flags); mode = va_arg(ap, int); va_end(ap); }
int open(const char *path, int flags, ...) { MODE; if (below(path)) FAIL("open", -1); return REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; if (below(path)) FAIL("open", -1); return REAL(open64)(path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE; if (below(path) || (path[0] != 0x2f && dir >= 0 && below_fd(dir))) FAIL("openat", -1); return REAL(openat)(dir, path, flags, mode); }

#define SHORT(n, what) do { if (below_fd(fd)) { int hit_ = draw(what); if (hit_ == 1) { errno = ESTALE; return -1; } \
    if (hit_ == 2) { errno = EINTR; return -1; } if (hit_ == 3 && n > 1) n = n / 2; } } while (0)
ssize_t read(int fd, void *to, size_t n) { SHORT(n, "read"); return REAL(read)(fd, to, n); }
ssize_t write(int fd, const void *from, size_t n) { SHORT(n, "write"); return REAL(write)(fd, from, n); }
ssize_t pread(int fd, void *to, size_t n, off_t at) { SHORT(n, "pread"); return REAL(pread)(fd, to, n, at); }
ssize_t pread64(int fd, void *to, size_t n, off64_t at) { SHORT(n, "pread"); return REAL(pread64)(fd, to, n, at); }
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { if (below_fd(fd)) FAIL("pwrite", -1); return REAL(pwrite)(fd, from, n, at); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { if (below_fd(fd)) FAIL("pwrite", -1); return REAL(pwrite64)(fd, from, n, at); }
ssize_t writev(int fd, const struct iovec *parts, int n) { SHORT(n, "writev"); return REAL(writev)(fd, parts, n); }
int fsync(int fd) { if (below_fd(fd)) FAIL("fsync", -1); return REAL(fsync)(fd); }
int ftruncate(int fd, off_t n) { if (below_fd(fd)) FAIL("ftruncate", -1); return REAL(ftruncate)(fd, n); }
int ftruncate64(int fd, off64_t n) { if (below_fd(fd)) FAIL("ftruncate", -1); return REAL(ftruncate64)(fd, n); }
int rename(const char *a, const char *b) { if (below(b)) FAIL("rename", -1); return REAL(rename)(a, b); }
int link(const char *a, const char *b) { if (below(b)) FAIL("link", -1); return REAL(link)(a, b); }
int unlink(const char *a) { if (below(a)) FAIL("unlink", -1); return REAL(unlink)(a); }
int mkdir(const char *a, mode_t mode) { if (below(a)) FAIL("mkdir", -1); return REAL(mkdir)(a, mode); }
int stat(const char *a, struct stat *to) { if (below(a)) FAIL("stat", -1); return REAL(stat)(a, to); }

static int locks(int fd, int what) {
    const char *how = getenv("FAULTS_LOCKS");
    if (!how || (what != F_SETLK && what != F_SETLKW) || !below_fd(fd)) return 0;
    return strcmp(how, "none") == 0 ? 1 : strcmp(how, "lost") == 0 ? 2 : 0;
}
#define ARGUMENT void *argument; va_list ap; va_start(ap, what); argument = va_arg(ap, void *); va_end(ap); \
    switch (locks(fd, what)) { case 1: errno = ENOLCK; return -1; case 2: return 0; }
int fcntl(int fd, int what, ...) { ARGUMENT; return REAL(fcntl)(fd, what, argument); }
int fcntl64(int fd, int what, ...) { ARGUMENT; return REAL(fcntl64)(fd, what, argument); }
