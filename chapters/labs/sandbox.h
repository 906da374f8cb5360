// Where a submission runs: in a process of its own, which gets bytes and returns bytes.
//
//     grader                                 runner (a program of its own, without any answers)
//     draws inputs into `arena`   -- file -->  maps the same bytes at the same address
//     waits, with a clock                      gives up its rights, loads the submission,
//     reads back what may come    <-- file --  calls one function, ends
//     judges
//
// The file has no name, and both see it at one address, so that pointers inside of it hold on both
// sides. The grader takes back only the places that a task says come back (`outputs`, `returned`):
// whatever else the submission writes, the grader's inputs stay as they were drawn. What is wanted
// never stands in the runner's memory.
//
// What the runner has given up, before the first line of the submission runs:
//
//     everywhere     a process group of its own, ended as a whole; limits on computing time, time
//                    that passes, memory, size of files (0 bytes), open files; no input, output
//                    thrown away; no environment
//     Linux          a filter of system calls: no new process or program, no socket, no signal to
//                    others, no file opened for writing, removed or renamed; threads are allowed
//     root, or where a user may have namespaces of his own
//                    a root directory that holds the submission alone, so that no other file can be
//                    read; network and shared memory of its own; root becomes the user nobody
//
// `build/labs/run01 --sandbox` says which of these hold on this machine.
#ifndef SANDBOX_H
#define SANDBOX_H

#ifdef __linux__
#define _GNU_SOURCE 1
#endif

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__GNUC__)
#define GRADE static __attribute__((unused))
#else
#define GRADE static
#endif

enum { STARTED = 1, NO_FUNCTION = 2, NOT_LOADED = 3, NO_CALL = 4, DONE = 0x600d };
enum { ARENA_FILE = 3, ARENA_BYTES = 64 << 20, ARENA_HEAD = 64 };
static char *arena = (char *)(uintptr_t)0x2000000000u; // its first int: how far the runner has come

// One way to call a submission's function: it knows the function's type and what `arg` points at.
typedef void call(void *function, void *arg);
typedef struct named_call { const char *name; call *how; } named_call;

// A function of type t, from what dlsym has given: C has no cast for that.
#define FUNCTION(t, f, from) \
    t *f;                    \
    memcpy(&f, &from, sizeof f)

#endif
