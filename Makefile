# dtrain: `make help` lists what there is to make.

# ---- Compilers. Debian may have Open MPI beside MPICH, and a program of the one under the launcher of the other runs as
# ---- N jobs of one rank; so the MPICH names are taken where they exist.
CC      = gcc
CXX     = g++
MPICC   = $(shell command -v mpicc.mpich || echo mpicc)
MPIEXEC = $(shell command -v mpiexec.mpich || echo mpiexec)

# ---- Flags.
ARCH     = -march=native
#   -O3                 unrolls the kernels' fixed loops and turns plain ones into vector code
#   -march=native       this machine's vector registers; say ARCH= for a program that runs elsewhere
#   -ffp-contract=off   no multiply and add are fused but where the code says so: the same bits on every machine with FMA
#   -D_DEFAULT_SOURCE   POSIX and the usual extensions (getopt_long, sched_yield) beside -std=c11
#   DEBUG=1             for a debugger: no optimisation, symbols
OPT      = $(if $(DEBUG),-O0 -g,-O3) $(ARCH) -ffp-contract=off
WARN     = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror
CFLAGS   = -std=c11 -D_DEFAULT_SOURCE $(OPT) $(WARN)
CXXFLAGS = -std=c++11 $(OPT) $(WARN)
LDLIBS   = -lm -pthread
#   MPICC's inner compiler is said, so that `make CC=clang` holds for it as well
MPIENV   = MPICH_CC=$(CC) OMPI_CC=$(CC)

CHAPTERS = $(sort $(foreach f,$(wildcard chapters/ch[0-9][0-9]_*.c),$(firstword $(subst _, ,$(notdir $f)))))
WITH_MPI = ch07 ch08 ch09 ch12
EXAMPLES = $(sort $(basename $(notdir $(filter-out %_impl.c %/speedrun.c,$(wildcard examples/*.c examples/*.cpp))))) build/speedrun

help:
	@echo "make deps          install what is missing      make data        MNIST, Fashion-MNIST, CIFAR-10 in ./data"
	@echo "make chNN          one chapter: ./chNN          make chNN DEBUG=1  the same for a debugger"
	@echo "make all           every chapter and example"
	@echo "make experiment    train, table, charts         DATA=auto|mnist|fashion|synthetic EPOCHS=10 WORKERS=\"1 2 3 4 5\""
	@echo "make forecast-check  ./ch12 --forecast against training on slow networks, made here; as root"
	@echo "make speedrun      30 seeds to 99 % on MNIST, timed   DATA=mnist|fashion|synthetic SEEDS=30 THREADS=2"
	@echo "make elastic       a job that outlives its ranks  RANKS=3 LEAST=1 TIMES=10 CHECKPOINT=out/elastic.checkpoint ARGS=\"--epochs 10\""
	@echo "make test          all tests                    make check       what the chapters print"
	@echo "make test-elsewhere  the same for AVX2, aarch64, s390x, after make deps-elsewhere"
	@echo "make lab04         a lab's handout             make grade-lab04  its points     make labs   all, for students"
	@echo "make bench         kernels against the peak     make figures     the chapters' pictures"
	@echo "make doctor        how MPI jobs start here      make wasm        chapters 0 to 6 as WebAssembly"
	@echo "make book          the chapters as pages, of which chapters 0 to 6 run in the browser; make deps-book gets its tools"
	@echo "make install       dtrain.h and its pkg-config file, under PREFIX=/usr/local"
	@echo "make clean"

all: $(CHAPTERS) $(EXAMPLES)

# ---- The implementation, compiled once for each configuration: a chapter is then compiled against the declarations alone,
# ---- in about a second, and linked with it. build/flags changes, and with it all that is built, when the flags do.
build/flags: always
	@mkdir -p build
	@echo '$(CC) $(MPICC) $(CFLAGS)' | cmp -s - $@ || echo '$(CC) $(MPICC) $(CFLAGS)' >$@

SHARED      = $(filter-out chapters/ch%,$(wildcard chapters/*.h)) chapters/chapter.h
CHAPTER     = -DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS
CHAPTER_MPI = -DDTRAIN_WITH_MPI $(CHAPTER)

build/dtrain.o: dtrain.h build/flags
	$(CC) $(CFLAGS) $(CHAPTER) -DDTRAIN_IMPLEMENTATION -x c -c -o $@ $<

build/dtrain_mpi.o: dtrain.h build/flags
	$(MPIENV) $(MPICC) $(CFLAGS) $(CHAPTER_MPI) -DDTRAIN_IMPLEMENTATION -x c -c -o $@ $<

# ---- Chapters: `make ch07` makes ./ch07 from chapters/ch07_*.c.
.SECONDEXPANSION:
$(filter-out $(WITH_MPI),$(CHAPTERS)): $$(wildcard chapters/$$@_*) $(SHARED) build/dtrain.o
	$(CC) $(CFLAGS) $(CHAPTER) -o $@ $(filter chapters/$@_%.c,$^) build/dtrain.o $(LDLIBS)

$(filter $(WITH_MPI),$(CHAPTERS)): $$(wildcard chapters/$$@_*) $(SHARED) build/dtrain_mpi.o
	$(MPIENV) $(MPICC) $(CFLAGS) $(CHAPTER_MPI) -o $@ $(filter chapters/$@_%.c,$^) build/dtrain_mpi.o $(LDLIBS)

#      what chapter 12 has of others
ch12: chapters/ch07_fit.h chapters/ch09_interval.h

# ---- WebAssembly: the chapters that need one core and no more. Debian: wasi-libc libclang-rt-14-dev-wasm32 lld, and nodejs,
# ---- which runs them: node --no-turbo-fast-api-calls tests/wasi.mjs ./ch03 --quick
ALONE    = ch00 ch01 ch02 ch03 ch04 ch05 ch06
WASM_CC  = clang --target=wasm32-wasi --sysroot=/usr
WASM     = -std=c11 -D_DEFAULT_SOURCE -O3 -msimd128 -ffp-contract=off $(WARN) -DDTRAIN_WITH_CHARTS
#   ch04 measures the computing time of its process, which is here the time that passes
WASM    += -D_WASI_EMULATED_PROCESS_CLOCKS
#   a stack as large as Linux gives, instead of 64 KiB; and first in memory, where one that is too small ends the program
WASM_LIB = -lm -lwasi-emulated-process-clocks -Wl,-z,stack-size=8388608 -Wl,--stack-first

wasm: $(patsubst %,build/wasm/%.wasm,$(ALONE))

build/wasm/dtrain.o: dtrain.h Makefile
	@mkdir -p $(@D)
	$(WASM_CC) $(WASM) -DDTRAIN_IMPLEMENTATION -x c -c -o $@ $<

$(patsubst %,build/wasm/%.wasm,$(ALONE)): build/wasm/%.wasm: $$(wildcard chapters/$$*_*) $(SHARED) build/wasm/dtrain.o
	$(WASM_CC) $(WASM) -o $@ $(filter chapters/$*_%.c,$^) build/wasm/dtrain.o $(WASM_LIB)

# ---- Examples: those that name no MPI are built without it, as a program that drops dtrain.h in would be.
lenet_mnist: examples/lenet_mnist.c $(SHARED) build/dtrain_mpi.o
	$(MPIENV) $(MPICC) $(CFLAGS) $(CHAPTER_MPI) -o $@ $< build/dtrain_mpi.o $(LDLIBS)

resnet9_cifar10 wideresnet: %: examples/%.c examples/models.h $(SHARED) build/dtrain_mpi.o
	$(MPIENV) $(MPICC) $(CFLAGS) $(CHAPTER_MPI) -o $@ $< build/dtrain_mpi.o $(LDLIBS)

dropin: examples/dropin.c dtrain.h
	$(CC) $(CFLAGS) -o $@ $< -lm

vectors: examples/vectors.c dtrain.h
	$(CC) $(CFLAGS) -o $@ $< -lm

infer: examples/infer.c $(SHARED) build/dtrain.o
	$(CC) $(CFLAGS) $(CHAPTER) -o $@ $< build/dtrain.o $(LDLIBS)

#      C++ includes the declarations; the implementation is C, in a file of its own
cpp_app: examples/cpp_app.cpp build/cpp_impl.o dtrain.h
	$(CXX) $(CXXFLAGS) -o $@ $< build/cpp_impl.o -lm

build/cpp_impl.o: examples/cpp_impl.c dtrain.h
	@mkdir -p build
	$(CC) $(CFLAGS) -c -o $@ $<

# ---- What is needed, and the data.
deps:
	sh chapters/get_deps.sh

data:
	sh chapters/get_data.sh

# ---- The full experiment of chapter 12. Variables: DATA=auto|mnist|fashion|synthetic EPOCHS=10 WORKERS="1 2 3 4 5"
DATA    = auto
EPOCHS  = 10
WORKERS = 1 2 3 4 5

#      data that cannot be had is no reason to stop: the programs then draw their own digits, and say so
experiment: ch12
	-@sh chapters/get_data.sh data mnist fashion
	@DATA="$(DATA)" EPOCHS="$(EPOCHS)" WORKERS="$(WORKERS)" MPIEXEC="$(MPIEXEC)" sh chapters/experiment.sh

# ---- The forecast of chapter 12 held against training on networks that chapters/networks.sh makes: as root, three minutes.
#      Where there are none the script says why, with exit code 77
RATES = 10mbit 100mbit 1gbit
forecast-check: ch12
	@mkdir -p out; rm -f out/ch12_forecast_check.csv
	@for rate in $(RATES); do for ranks in 2 3 4; do \
	    MPIEXEC="$(MPIEXEC)" sh chapters/networks.sh $$rate $$ranks ./ch12 --forecast --quiet --network $$rate --csv out/ch12_forecast_check.csv; \
	    code=$$?; [ $$code -ne 77 ] || exit 0; [ $$code -eq 0 ] || exit 1; \
	done; done; ./ch12 --forecast --report out/ch12_forecast_check.csv

# ---- How fast a goal is reached: every seed's accuracy and seconds, and their picture. Variables: DATA=mnist|fashion|synthetic SEEDS=30 THREADS=2
SEEDS   = 30
THREADS = 2
speedrun: build/speedrun
	-@sh chapters/get_data.sh data mnist fashion
	./build/speedrun --data $(SPEEDRUN) --seeds $(SEEDS) --threads $(THREADS)

SPEEDRUN = $(if $(filter auto,$(DATA)),mnist,$(DATA))
build/speedrun: examples/speedrun.c $(SHARED) build/dtrain.o
	$(CC) $(CFLAGS) $(CHAPTER) -o $@ $< build/dtrain.o $(LDLIBS)

# ---- A job that is started again from its checkpoint, with one rank less, when it ends badly: chapters/elastic.sh says of the variables.
#      RANKS is also the doctor's, below: here 3 unless it is given.
elastic: ch12
	@MPIEXEC="$(MPIEXEC)" RANKS="$(if $(filter command line environment,$(origin RANKS)),$(RANKS),3)" sh chapters/elastic.sh $(ARGS)

# ---- How MPI jobs start here: launcher, ranks against cores, builds, data, shared memory. RANKS=2
# ---- Under Slurm: make doctor MPIEXEC="srun --mpi=pmi2"
RANKS = 2
doctor: ch12
	$(MPIEXEC) -n $(RANKS) ./ch12 --doctor

# ---- Every chapter on small settings, compared with what its head says it prints.
check: $(CHAPTERS)
	@MPIEXEC="$(MPIEXEC)" sh chapters/check.sh

# ---- Pictures of the chapters, from this machine. Those that time kernels by the wall clock keep to one core.
figures: $(CHAPTERS) build/bench build/speedrun
	for ch in 00 01 02 05; do ./ch$$ch --figures figures || exit 1; done
	./ch04 --runs 15 --figures figures
	sh chapters/ch04_accuracy.sh 10 figures/ch04_accuracy.csv
	for ch in 03 06; do taskset -c 0 ./ch$$ch --figures figures || exit 1; done
	$(MPIEXEC) -n 2 ./ch07 --png figures/ch07
	$(MPIEXEC) -n 2 ./ch08 --png figures/ch08_sync.png
	(echo '"ranks","test accuracy"'; for p in 1 2 3 4 5; do \
	    ./ch08 --bug lost-sum --no-check --ranks $$p | sed -n "s/^lost-sum .* accuracy is \(.*\) %/$$p,\1/p"; \
	done) >figures/ch08_lost_sum.csv
	./ch09 --epochs 2 --png figures/ch09
	./ch09 --epochs 2 --lr 0.07 --average-every 16 --png out/ch09_rate
	cp out/ch09_rate_accuracy.csv figures/ch09_rate.csv
	./ch10 --images 60000 --png figures/ch10
	./ch11 --data fashion --png figures/ch11
	$(MPIEXEC) -n 2 ./ch12 --forecast --png figures/ch12_forecast
	taskset -c 0 ./build/bench --figures figures
	./build/speedrun --figures figures

# ---- Kernels against the machine's peak, and a training step by layer.
bench: build/bench
	@mkdir -p out
	taskset -c 0 ./build/bench

build/bench: tests/bench.c chapters/output.h dtrain.h
	@mkdir -p build
	$(CC) $(CFLAGS) -DDTRAIN_WITH_CHARTS -o $@ tests/bench.c $(LDLIBS)

# ---- For other programs on this machine: the header, and what pkg-config says of it. DESTDIR is for packagers.
PREFIX  = /usr/local
VERSION = $(shell sed -n 's/^\#define DTRAIN_VERSION "\(.*\)"/\1/p' dtrain.h)
install:
	install -d "$(DESTDIR)$(PREFIX)/include" "$(DESTDIR)$(PREFIX)/lib/pkgconfig"
	install -m 644 dtrain.h "$(DESTDIR)$(PREFIX)/include"
	printf '%s\n' 'prefix=$(PREFIX)' '' 'Name: dtrain' 'Description: Parallel training of convolutional networks, one C header' \
	    'Version: $(VERSION)' 'Cflags: -I$${prefix}/include' 'Libs: -lm' >"$(DESTDIR)$(PREFIX)/lib/pkgconfig/dtrain.pc"

clean:
	rm -rf build $(CHAPTERS) $(EXAMPLES)

-include chapters/book/book.mk
-include chapters/labs/labs.mk
-include tests/tests.mk

always:

.PHONY: always help all wasm deps data experiment forecast-check elastic doctor check figures bench install clean
.PHONY: always help all wasm deps data experiment speedrun elastic doctor check figures bench install clean
