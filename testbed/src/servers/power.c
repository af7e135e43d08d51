// power ROOT SHADOW COMMAND...: runs COMMAND and keeps in SHADOW what a power cut would leave of the folder ROOT.
//
// SHADOW/objects has the content of each file as it was when it was last synced, SHADOW/tree the names, which are hard
// links to the objects. A sync of a file makes its content and its present name durable, as journalling file systems
// do; creations, renames and removals are durable after a sync of their folder. What is not seen here counts as lost:
// msync, and writes to files that were opened with O_SYNC.
//
// The system calls are seen by seccomp, so also those of programs that do not ask the C library.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef char Path[PATH_MAX];
static const char *root, *shadow;

static void need(int fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "power: %s: %s\n", what, strerror(errno));
    _exit(99);
}

// `from` with a further part.
static const char *join(Path to, const char *from, const char *part)
{
    need((size_t)snprintf(to, PATH_MAX, "%s/%s", from, part) < PATH_MAX, "a path that is too long");
    return to;
}

// The object of a file. Numbers of inodes are used again: the time of its creation tells the new one from the old.
static const char *object(Path to, const struct statx *file)
{
    Path name;
    snprintf(name, sizeof name, "objects/%llu-%lld-%u", (unsigned long long)file->stx_ino,
             (long long)file->stx_btime.tv_sec, file->stx_btime.tv_nsec);
    return join(to, shadow, name);
}

static void make_folders(const char *path)
{
    Path part;
    join(part, path, "");
    for (char *at = part + strlen(shadow) + 1; (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        need(mkdir(part, 0700) == 0 || errno == EEXIST, part);
    }
}

// From now on `name` in the tree is this object.
static void name_object(const char *object, const char *name)
{
    struct stat one, other;
    Path made;
    need(stat(object, &one) == 0, object);
    if (lstat(name, &other) == 0 && one.st_ino == other.st_ino)
        return;
    join(made, shadow, "made");
    unlink(made);
    need(link(object, made) == 0 && rename(made, name) == 0, name);
}

// The content of `from`, without reading its holes.
static void copy(int from, int to, const struct statx *file)
{
    static char buffer[1 << 20];
    off_t data = 0, hole, size = (off_t)file->stx_size;
    while (data < size && (data = lseek(from, data, SEEK_DATA)) >= 0 && data < size) {
        hole = lseek(from, data, SEEK_HOLE);
        while (data < hole) {
            size_t part = hole - data < (off_t)sizeof buffer ? (size_t)(hole - data) : sizeof buffer;
            ssize_t got = pread(from, buffer, part, data);
            // It was cut short meanwhile.
            if (got <= 0)
                break;
            need(pwrite(to, buffer, (size_t)got, data) == got, "writing an object");
            data += got;
        }
        data = hole;
    }
    need(ftruncate(to, size) == 0 && fchmod(to, file->stx_mode & 07777) == 0, "an object");
}

static void keep_file(int file, const struct statx *about, const char *name)
{
    Path to;
    int out = open(object(to, about), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    need(out >= 0, to);
    copy(file, out, about);
    close(out);
    if (!name)
        return;
    Path folder;
    *strrchr(strcpy(folder, name), '/') = 0;
    make_folders(folder);
    name_object(to, name);
}

static int discard(const char *path, const struct stat *about, int type, struct FTW *at)
{
    (void)about, (void)type, (void)at;
    return remove(path);
}

static void keep_folder(const char *real, const char *name)
{
    struct dirent *entry;
    Path path, to, known;
    make_folders(name);
    DIR *folder = opendir(real);
    while (folder && (entry = readdir(folder))) {
        struct statx about;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        join(path, real, entry->d_name);
        join(to, name, entry->d_name);
        if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &about))
            continue;
        if (S_ISDIR(about.stx_mode)) {
            need(mkdir(to, about.stx_mode & 07777) == 0 || errno == EEXIST, to);
        } else if (S_ISREG(about.stx_mode)) {
            // One that was never synced has a name and no content.
            int made = open(object(known, &about), O_RDWR | O_CREAT | O_CLOEXEC, about.stx_mode & 07777);
            need(made >= 0, known);
            close(made);
            name_object(known, to);
        }
    }
    if (folder)
        closedir(folder);
    folder = opendir(name);
    while (folder && (entry = readdir(folder))) {
        join(path, real, entry->d_name);
        if (access(path, F_OK) && errno == ENOENT)
            nftw(join(to, name, entry->d_name), discard, 8, FTW_DEPTH | FTW_PHYS);
    }
    if (folder)
        closedir(folder);
}

static void keep(const struct seccomp_notif *call)
{
    Path link, real, name;
    struct statx about;
    snprintf(link, sizeof link, "/proc/%u/fd/%d", call->pid, (int)call->data.args[0]);
    ssize_t length = readlink(link, real, sizeof real - 1);
    if (length <= 0)
        return;
    real[length] = 0;
    size_t prefix = strlen(root);
    if (strncmp(real, root, prefix) || (real[prefix] && real[prefix] != '/'))
        return;
    int file = open(link, O_RDONLY | O_CLOEXEC);
    // The caller may have been killed just now.
    if (file < 0)
        return;
    need(statx(file, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &about) == 0, real);
    join(name, shadow, "tree");
    strncat(name, real + prefix, sizeof name - strlen(name) - 1);
    if (S_ISDIR(about.stx_mode))
        keep_folder(real, name);
    else if (S_ISREG(about.stx_mode))
        keep_file(file, &about, about.stx_nlink ? name : NULL);
    close(file);
}

// Holds the lock on SHADOW/lock until the last process of the command has ended.
static void watch(int calls)
{
    struct pollfd ready = {.fd = calls, .events = POLLIN};
    while (poll(&ready, 1, -1) >= 0 || errno == EINTR) {
        struct seccomp_notif call = {0};
        if (ready.revents & POLLHUP)
            return;
        // The caller may have been killed just now.
        if (ioctl(calls, SECCOMP_IOCTL_NOTIF_RECV, &call))
            continue;
        keep(&call);
        // Now the system does it as well: what the caller hears of errors is true.
        struct seccomp_notif_resp go_on = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
        ioctl(calls, SECCOMP_IOCTL_NOTIF_SEND, &go_on);
    }
}

static int filter(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fdatasync, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no_new_privs");
    int calls = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    need(calls >= 0, "seccomp, which needs Linux 5.6");
    return calls;
}

int main(int count, char **words)
{
    Path lock;
    int to_watcher[2], calls;
    need(count > 3, "ROOT SHADOW COMMAND");
    root = words[1];
    shadow = words[2];
    int locked = open(join(lock, shadow, "lock"), O_RDWR | O_CREAT, 0600);
    need(locked >= 0 && flock(locked, LOCK_EX) == 0, lock);
    need(pipe(to_watcher) == 0, "a pipe");
    // The watcher shares the descriptors until the command begins, and is no child of it. It must be there before the
    // filter, which it would inherit.
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    need(child >= 0, "clone");
    if (child == 0) {
        if (syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0))
            _exit(0);
        setsid();
        need(read(to_watcher[0], &calls, sizeof calls) == sizeof calls, "the filter");
        watch(calls);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    fcntl(locked, F_SETFD, FD_CLOEXEC);
    fcntl(to_watcher[0], F_SETFD, FD_CLOEXEC);
    fcntl(to_watcher[1], F_SETFD, FD_CLOEXEC);
    calls = filter();
    need(write(to_watcher[1], &calls, sizeof calls) == sizeof calls, "the watcher");
    execvp(words[3], words + 3);
    need(0, words[3]);
}
