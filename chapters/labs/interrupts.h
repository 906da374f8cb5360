// A thread that is interrupted at any instruction, while another worker does what it would do on
// another core: so that a lost update is found on a busy machine, and on one core, too.
#ifndef INTERRUPTS_H
#define INTERRUPTS_H

#ifdef RUNNER
#include "sandbox.h"

#include <pthread.h>

// So many, or as many as come in two seconds: on a busy machine the two threads take turns on one
// core, and an interruption takes milliseconds.
enum { MOST_INTERRUPTIONS = 1000, MOST_MILLISECONDS = 2000 };
static void (*do_meanwhile)(void);
static pthread_t interrupted_thread;
static volatile sig_atomic_t interruptions, all_done;

static void on_interruption(int number) {
    (void)number;
    do_meanwhile();
    ++interruptions;
}

static void *interrupter(void *nothing) {
    struct timespec moment = { 0, 20000 }, start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 1; i <= MOST_INTERRUPTIONS; ++i) {
        pthread_kill(interrupted_thread, SIGUSR1);
        moment.tv_nsec = 5000 + i * 7919L % 40000; // in no step with the loop that is interrupted
        do nanosleep(&moment, NULL);
        while (interruptions < i);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >
            MOST_MILLISECONDS)
            break;
    }
    all_done = 1;
    return nothing;
}

// work() again and again; how often it was done, and how often it was interrupted.
typedef struct met { uint32_t times, interruptions; } met;
static met interrupted(void (*work)(void), void (*meanwhile)(void)) {
    struct sigaction action;
    pthread_t thread;
    uint32_t times = 0;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interruption, action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, NULL);
    do_meanwhile = meanwhile, interrupted_thread = pthread_self();
    if (pthread_create(&thread, NULL, interrupter, NULL) != 0) _exit(1);
    for (; !all_done; ++times) work();
    pthread_join(thread, NULL);
    return (met){ times, (uint32_t)interruptions };
}

#else
typedef struct met { unsigned times, interruptions; } met;
#endif
#endif
