// The runner of every lab: main, and how it gives up its rights. See sandbox.h. It is included
// behind the lab's own `calls`, a list that ends with { NULL, NULL }.
#ifndef RUNNER_H
#define RUNNER_H

#include "sandbox.h"

#ifdef __linux__
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#if defined(__x86_64__)
#define THIS_ARCH 0xC000003Eu
#elif defined(__aarch64__)
#define THIS_ARCH 0xC00000B7u
#endif
#endif

typedef struct confinement { bool filter, root_directory, network, user; } confinement;

#if defined(__linux__) && defined(THIS_ARCH)
// What a submission may ask the system for. All else fails with EPERM.
static const int allowed[] = {
    SYS_read, SYS_readv, SYS_pread64, SYS_write, SYS_writev, SYS_close, SYS_fstat, SYS_lseek,
    SYS_mmap, SYS_mprotect, SYS_munmap, SYS_mremap, SYS_madvise, SYS_brk, SYS_futex,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall,
    SYS_sched_yield, SYS_sched_getaffinity, SYS_nanosleep, SYS_clock_nanosleep,
    SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday, SYS_getpid, SYS_gettid, SYS_getuid,
    SYS_geteuid, SYS_getrandom, SYS_exit, SYS_exit_group, SYS_set_robust_list, SYS_membarrier,
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
#ifdef SYS_rseq
    SYS_rseq,
#endif
#ifdef SYS_time
    SYS_time,
#endif
};
enum { ALLOWED = sizeof allowed / sizeof *allowed, MOST_LINES = 2 * ALLOWED + 40 };

#define LINE(...) (filter[lines++] = (struct sock_filter)__VA_ARGS__)
#define LOAD(member) \
    LINE(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, member)))
#define SKIP_UNLESS(value, n) LINE(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, n))
#define SKIP_UNLESS_BITS(b, n) LINE(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)(b), 0, n))
#define SKIP_IF_BITS(bits, n) LINE(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, (uint32_t)(bits), n, 0))
#define ANSWER(what) LINE(BPF_STMT(BPF_RET | BPF_K, (uint32_t)(what)))

static bool filter_system_calls(void) {
    struct sock_filter filter[MOST_LINES];
    unsigned short lines = 0;
    LOAD(arch);
    SKIP_UNLESS(THIS_ARCH, 1), LINE(BPF_STMT(BPF_JMP | BPF_JA, 1));
    ANSWER(SECCOMP_RET_KILL_PROCESS);
    LOAD(nr);
    for (int i = 0; i < ALLOWED; ++i) SKIP_UNLESS(allowed[i], 1), ANSWER(SECCOMP_RET_ALLOW);
    SKIP_UNLESS(SYS_openat, 4); // to read
    LOAD(args[2]);
    SKIP_IF_BITS(O_ACCMODE | O_CREAT | O_TRUNC, 1), ANSWER(SECCOMP_RET_ALLOW);
    ANSWER(SECCOMP_RET_ERRNO | EPERM);
    SKIP_UNLESS(SYS_clone, 4); // threads
    LOAD(args[0]);
    SKIP_UNLESS_BITS(CLONE_THREAD, 1), ANSWER(SECCOMP_RET_ALLOW);
    ANSWER(SECCOMP_RET_ERRNO | EPERM);
    SKIP_UNLESS(SYS_tgkill, 4); // abort()
    LOAD(args[0]);
    SKIP_UNLESS(getpid(), 1), ANSWER(SECCOMP_RET_ALLOW);
    ANSWER(SECCOMP_RET_ERRNO | EPERM);
#ifdef SYS_clone3
    SKIP_UNLESS(SYS_clone3, 1), ANSWER(SECCOMP_RET_ERRNO | ENOSYS); // the C library takes clone
#endif
    ANSWER(SECCOMP_RET_ERRNO | EPERM);
    const struct sock_fprog program = { lines, filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}
#else
static bool filter_system_calls(void) { return false; }
#endif

// Limits on processes count all of a user's: they are set only where this user has no others.
static void limit_processes(void) {
#ifdef RLIMIT_NPROC
    const struct rlimit most = { 64, 64 };
    setrlimit(RLIMIT_NPROC, &most);
#endif
}

static confinement confine(const char *jail) {
    confinement got = { false, false, false, false };
    enum { NOBODY = 65534 };
    const bool root = geteuid() == 0;
#ifdef __linux__
    const int spaces = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWNS;
    got.network = unshare(root ? spaces : spaces | CLONE_NEWUSER) == 0;
#endif
    if (root || got.network) got.root_directory = chroot(jail) == 0 && chdir("/") == 0;
#ifdef __linux__
    if (root)
        got.user = setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
    if (got.user || (got.network && !root)) limit_processes();
#endif
    got.filter = filter_system_calls();
    return got;
}

static int say_sandbox(const char *jail) {
    const confinement got = confine(jail);
    printf("process group, limits on time, memory, files and output: yes\n");
    printf("filter of system calls: %s\n", got.filter ? "yes" : "no");
    printf("files of others out of reach: %s\n", got.root_directory ? "yes" : "no");
    printf("network and shared memory of its own: %s\n", got.network ? "yes" : "no");
    printf("another user: %s\n", got.user ? "yes" : "no");
    return 0;
}

// run04 DIRECTORY FUNCTION CALL ADDRESS BYTES: DIRECTORY holds lab.so
int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--sandbox") == 0) return say_sandbox("/");
    if (argc < 6) return 2;
    const size_t bytes = (size_t)strtoull(argv[5], NULL, 10);
    void *arg = (void *)(uintptr_t)strtoull(argv[4], NULL, 10);
    if (mmap(arena, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ARENA_FILE, 0) != arena)
        return 2;
    close(ARENA_FILE);
    volatile int *state = (volatile int *)(void *)arena;
    call *how = NULL;
    for (const named_call *c = calls; c->name; ++c)
        if (strcmp(c->name, argv[3]) == 0) how = c->how;
    if (!how) return *state = NO_CALL, 2;
    char path[4096];
    snprintf(path, sizeof path, "%s/lab.so", argv[1]);
    volatile double one = 1.0;
    *state = fmod(one, 2.0) > 0.0 ? STARTED : NO_CALL;    // libm is loaded now, not from the jail
    const confinement got = confine(argv[1]);
    void *object = dlopen(got.root_directory ? "/lab.so" : path, RTLD_NOW);
    void *function = object ? dlsym(object, argv[2]) : NULL;
    if (!function) return *state = object ? NO_FUNCTION : NOT_LOADED, 1;
    how(function, arg);
    *state = DONE;
    _exit(0);
}

#endif
