// What a program prints on standard output arrives, or the program says that it did not: one
// sentence on standard error, and an exit code that is not 0. No line asks whether its printf
// succeeded; the stream remembers, and is asked at the end.
#ifndef OUTPUT_H
#define OUTPUT_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#define HAS_SIGNALS // and a shell that closes files; WebAssembly has neither
#endif

// First in main. A reader that goes away, as `head` does, is to be an error like others and not a
// signal that ends the program. And where the shell closed standard output (>&-), its number must
// not go to the next file that is opened: /dev/null takes it, opened to read, so that what is
// written there fails.
static inline void begin_output(void) {
#ifdef HAS_SIGNALS
    signal(SIGPIPE, SIG_IGN);
    for (int fd = 0; fd <= 2; ++fd)
        if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", O_RDONLY);
#endif
}

// Last: what main returns or exit() is told. It is `code`, or 1 for a program that would have ended
// well.
static inline int exit_code(int code) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "standard output: not all that was printed could be written%s%s\n",
            errno ? ": " : "", errno ? strerror(errno) : "");
    return code ? code : 1;
}

#endif
