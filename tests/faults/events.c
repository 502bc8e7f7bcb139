/* Counts what a program changes below a folder, and fails, kills or signals it at the N-th change.
 *
 * Loaded with LD_PRELOAD into a job and all its processes. They share one counter, in the file FAULTS_STATE.
 * A change is a call that creates, writes, renames, links or removes something below FAULTS_ROOT, or syncs it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL_ALL, KILL_ONE, DISK_FULL, INPUT_OUTPUT, INTERRUPT, TERMINATE };

static struct state {
    _Atomic long count;  /* changes so far */
    _Atomic long at;     /* the change that is hit, from 1; 0: none */
    _Atomic long action; /* see the enum */
} *state;

static char root[PATH_MAX];
static size_t root_length;

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("FAULTS_STATE"), *folder = getenv("FAULTS_ROOT");
    if (!file || !folder) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, file, O_RDWR);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (found == MAP_FAILED) return;
    root_length = (size_t)snprintf(root, sizeof root, "%s", folder);
    state = found;
}

static int is_below(const char *path) {
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int of_fd(int fd) {
    char link[64], path[PATH_MAX];
    if (!state) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int of_path(int dir, const char *path) {
    char here[PATH_MAX], full[2 * PATH_MAX];
    if (!state || !path) return 0;
    if (path[0] == '/') return is_below(path);
    if (dir == AT_FDCWD) {
        if (!getcwd(here, sizeof here)) return 0;
    } else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t length = readlink(link, here, sizeof here - 1);
        if (length < 0) return 0;
        here[length] = 0;
    }
    snprintf(full, sizeof full, "%s/%s", here, path);
    return is_below(full);
}

/* Says whether this change fails, with errno set. `grows`: it needs space. */
static int fails(int grows) {
    long place = atomic_fetch_add(&state->count, 1) + 1, at = atomic_load(&state->at);
    if (!at || place < at) return 0;
    switch (atomic_load(&state->action)) {
    case KILL_ALL:
        kill(0, SIGKILL);
        for (;;) pause();
    case KILL_ONE:
        if (place == at) {
            kill(getpid(), SIGKILL);
            for (;;) pause();
        }
        return 0;
    case DISK_FULL: /* and stays full */
        if (grows) errno = ENOSPC;
        return grows;
    case INPUT_OUTPUT:
        if (place == at) errno = EIO;
        return place == at;
    case INTERRUPT: /* as Ctrl-C: to all processes of the job */
        if (place == at) kill(0, SIGINT);
        return 0;
    case TERMINATE: /* to the launcher, which leads the group */
        if (place == at) kill(getpgrp(), SIGTERM);
        return 0;
    }
    return 0;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define CREATES(flags) (((flags) & (O_CREAT | O_TRUNC)) || ((flags) & O_TMPFILE) == O_TMPFILE)
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); MODE(flags); \
        if (CREATES(flags) && of_path(AT_FDCWD, path) && fails(1)) return -1; \
        return real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int dir, const char *path, int flags, ...) { \
        REAL(name); MODE(flags); \
        if (CREATES(flags) && of_path(dir, path) && fails(1)) return -1; \
        return real(dir, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define ON_FD(type, name, given, passed, grows) \
    type name given { REAL(name); if (of_fd(fd) && fails(grows)) return -1; return real passed; }
ON_FD(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), 1)
ON_FD(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), 1)
ON_FD(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at), 1)
ON_FD(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), 1)
ON_FD(int, ftruncate, (int fd, off_t size), (fd, size), 0)
ON_FD(int, ftruncate64, (int fd, off64_t size), (fd, size), 0)
ON_FD(int, fsync, (int fd), (fd), 0)
ON_FD(int, fdatasync, (int fd), (fd), 0)

ssize_t copy_file_range(int from, off64_t *from_at, int fd, off64_t *at, size_t size, unsigned flags) {
    REAL(copy_file_range);
    if (of_fd(fd) && fails(1)) return -1;
    return real(from, from_at, fd, at, size, flags);
}
ssize_t sendfile64(int fd, int from, off64_t *at, size_t size) {
    static ssize_t (*real)(int, int, off64_t *, size_t);
    if (!real) real = (ssize_t (*)(int, int, off64_t *, size_t))dlsym(RTLD_NEXT, "sendfile64");
    if (of_fd(fd) && fails(1)) return -1;
    return real(fd, from, at, size);
}
ssize_t sendfile(int fd, int from, off_t *at, size_t size) { return sendfile64(fd, from, at, size); }

#define ON_PATH(name, given, passed, dir, path, grows) \
    int name given { REAL(name); if (of_path(dir, path) && fails(grows)) return -1; return real passed; }
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path, 1)
ON_PATH(mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode), dir, path, 1)
ON_PATH(rmdir, (const char *path), (path), AT_FDCWD, path, 0)
ON_PATH(unlink, (const char *path), (path), AT_FDCWD, path, 0)
ON_PATH(unlinkat, (int dir, const char *path, int flags), (dir, path, flags), dir, path, 0)
ON_PATH(rename, (const char *from, const char *to), (from, to), AT_FDCWD, to, 0)
ON_PATH(renameat, (int from_dir, const char *from, int dir, const char *to), (from_dir, from, dir, to), dir, to, 0)
ON_PATH(renameat2, (int from_dir, const char *from, int dir, const char *to, unsigned flags),
        (from_dir, from, dir, to, flags), dir, to, 0)
ON_PATH(link, (const char *from, const char *to), (from, to), AT_FDCWD, to, 1)
ON_PATH(linkat, (int from_dir, const char *from, int dir, const char *to, int flags),
        (from_dir, from, dir, to, flags), dir, to, 1)
ON_PATH(symlink, (const char *target, const char *path), (target, path), AT_FDCWD, path, 1)
ON_PATH(symlinkat, (const char *target, int dir, const char *path), (target, dir, path), dir, path, 1)
ON_PATH(truncate, (const char *path, off_t size), (path, size), AT_FDCWD, path, 0)
