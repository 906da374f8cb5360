# make test: everything under tests/, and the chapters' printed output if chapters/check.sh is there.
#
# The programs are built under build/tests, each in one compilation of the header, or linked with build/dtrain*.o where they use what is public:
#   build/tests/gcc     all of them; the kernels and nets with the flags that programs are built with
#   build/tests/clang   the kernels, and the nets for AVX2, whose training must give the same bits as gcc's for this machine
#   build/tests/base    the kernels for the plainest processor of this kind (on x86: SSE2, no fused multiply-add)
#   build/tests/mpi     what runs under mpiexec, and on threads without it
#   build/tests/gcc-sanitize, clang-sanitize   the contract of arguments and damaged checkpoints, where a wrong access or an overflow ends the program
#
# make test-elsewhere: the same unit tests for other processors, a few minutes more; `make deps-elsewhere` gets what that needs.
#   build/tests/avx2     by gcc, where this processor has AVX2
#   build/tests/aarch64  by the cross compiler, run under qemu-user; NEON, and the same bits again
#   build/tests/s390x    the same; a number's bytes lie the other way round: files, checkpoints, sums, and a net's bits
TEST_BASE  = -std=c11 -D_DEFAULT_SOURCE -ffp-contract=off $(WARN) -I.
TEST_LIBS  = -lcmocka $(LDLIBS)
TEST_AVX2  = $(shell grep -qw avx2 /proc/cpuinfo 2>/dev/null && grep -qw fma /proc/cpuinfo && echo -march=x86-64-v3 || echo $(ARCH))
TEST_MPI   = $(addprefix build/tests/mpi/,test_comm test_contract test_train)
TEST_GCC   = $(filter-out $(subst /mpi/,/gcc/,$(TEST_MPI)),$(patsubst tests/%.c,build/tests/gcc/%,$(wildcard tests/test_*.c)))
TEST_SAN   = -O0 -g -fsanitize=address,undefined -fno-sanitize-recover=all
TEST_ALL   = $(TEST_GCC) $(TEST_MPI) build/tests/clang/test_kernels build/tests/clang/test_net build/tests/base/test_kernels \
             build/tests/gcc-sanitize/test_contract build/tests/clang-sanitize/test_contract build/tests/gcc-sanitize/test_checkpoint build/tests/mpi/fault build/tests/make_idx $(GRADERS)
#   not emulated: what looks at this system; and, but with EMULATE=all, what has nothing of its own there (sentences, refusals, ranks) and
#   what trains or draws for so long that the emulator takes many minutes, its bits being made of what test_net, test_kernels and test_sums
#   look at
EMULATE    =
TEST_HERE  = $(patsubst %,tests/test_%.c,locale says $(if $(filter all,$(EMULATE)),,contract checkpoint faults charts norm steps train comm data numbers))
TEST_ELSE  = $(if $(findstring v3,$(TEST_AVX2)),$(addprefix build/tests/avx2/,test_kernels test_net test_train)) \
             $(if $(filter aarch64,$(shell uname -m)),,$(patsubst tests/%.c,build/tests/aarch64/%,$(filter-out $(TEST_HERE),$(wildcard tests/test_*.c)))) \
             $(addprefix build/tests/s390x/test_,$(TEST_S390X))
TEST_S390X = data files checkpoint sums net

# the header's own flags (-O3 $(ARCH)) where speed or their effect on the code matters, less where compiling takes longer than running;
# and where little of the header is called, DT_STATIC, with which a compiler leaves out the rest
build/tests/gcc/test_kernels build/tests/gcc/test_net: TEST_OPT = -O3 $(ARCH)
build/tests/gcc/test_data: TEST_OPT = -O1 $(ARCH) -DDT_STATIC
build/tests/gcc/test_files build/tests/gcc/test_locale build/tests/gcc/test_faults: TEST_OPT = -O0 $(ARCH)
build/tests/gcc/%: TEST_OPT = -O1 $(ARCH)
build/tests/clang/test_kernels: TEST_OPT = -O2 $(ARCH)
build/tests/clang/test_net: TEST_OPT = -O2 $(TEST_AVX2)
build/tests/base/%: TEST_OPT = -O1
build/tests/mpi/%: TEST_OPT = -O1 $(ARCH)

build/tests/gcc/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	gcc $(TEST_BASE) $(TEST_OPT) -o $@ $< $(TEST_LIBS)

build/tests/base/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	gcc $(TEST_BASE) $(TEST_OPT) -o $@ $< $(TEST_LIBS)

build/tests/clang/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	clang $(TEST_BASE) $(TEST_OPT) -o $@ $< $(TEST_LIBS)

build/tests/gcc-sanitize/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	gcc $(TEST_BASE) $(TEST_SAN) -o $@ $< $(TEST_LIBS)

build/tests/clang-sanitize/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	clang $(TEST_BASE) $(TEST_SAN) -o $@ $< $(TEST_LIBS)

build/tests/mpi/%: tests/%.c build/dtrain_mpi.o tests/tests.mk
	@mkdir -p $(@D)
	MPICH_CC=gcc OMPI_CC=gcc $(MPICC) $(TEST_BASE) $(TEST_OPT) -DDTRAIN_LINKED -DDTRAIN_WITH_MPI -o $@ $< build/dtrain_mpi.o $(TEST_LIBS)

#   these two look inside
build/tests/mpi/test_contract build/tests/mpi/test_train: build/tests/mpi/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	MPICH_CC=gcc OMPI_CC=gcc $(MPICC) $(TEST_BASE) $(TEST_OPT) -DDTRAIN_WITH_MPI -o $@ $< $(TEST_LIBS)

#   and this one calls what is public, as a program does
build/tests/gcc/test_numbers: tests/test_numbers.c build/dtrain.o tests/tests.mk
	@mkdir -p $(@D)
	gcc $(TEST_BASE) -O1 -DDTRAIN_LINKED -o $@ $< build/dtrain.o $(TEST_LIBS)

build/tests/avx2/%: tests/%.c dtrain.h tests/tests.mk
	@mkdir -p $(@D)
	gcc $(TEST_BASE) -O2 $(TEST_AVX2) -o $@ $< $(TEST_LIBS)

#   gcc 12 for aarch64 ends with an internal error where it makes vectors of test_steps' loops
build/tests/aarch64/test_steps: TEST_OPT = -O1
build/tests/aarch64/test_data build/tests/aarch64/test_files build/tests/aarch64/test_sums: TEST_OPT = -O1 -DDT_STATIC

#   -idirafter: stb's headers, which are the same for all processors
build/tests/aarch64/%: tests/%.c dtrain.h tests/tests.mk build/aarch64/lib/libcmocka.so
	@mkdir -p $(@D)
	aarch64-linux-gnu-gcc $(TEST_BASE) $(or $(TEST_OPT),-O2) -isystem build/aarch64/include -idirafter /usr/include -o $@ $< -Lbuild/aarch64/lib $(TEST_LIBS)

#   -fexcess-precision=fast: without it a strict -std=c11 computes floats as doubles on s390x
build/tests/s390x/%: TEST_OPT = -O1 -DDT_STATIC
build/tests/s390x/%: tests/%.c dtrain.h tests/tests.mk build/s390x/lib/libcmocka.so
	@mkdir -p $(@D)
	s390x-linux-gnu-gcc $(TEST_BASE) $(TEST_OPT) -fexcess-precision=fast -isystem build/s390x/include -idirafter /usr/include -o $@ $< -Lbuild/s390x/lib $(TEST_LIBS)

build/aarch64/lib/libcmocka.so build/s390x/lib/libcmocka.so:
	@echo "test-elsewhere: no cmocka for another processor here; make deps-elsewhere"; exit 1

build/tests/make_idx: tests/make_idx.c build/dtrain.o tests/tests.mk
	@mkdir -p $(@D)
	gcc $(TEST_BASE) -O1 -DDTRAIN_LINKED -o $@ $< build/dtrain.o $(LDLIBS)

#   calls made from the declarations
build/tests/contract_calls.h: dtrain.h tests/contract_calls.py
	@mkdir -p $(@D)
	python3 tests/contract_calls.py dtrain.h >$@ || { rm -f $@; exit 1; }
$(foreach kind,mpi gcc-sanitize clang-sanitize aarch64,build/tests/$(kind)/test_contract): build/tests/contract_calls.h

#   what these three have in common
$(foreach kind,gcc clang avx2 aarch64 s390x,$(patsubst %,build/tests/$(kind)/test_%,net norm steps)): tests/reference.h

#   these test what the chapters have, too
build/tests/gcc/test_locale build/tests/gcc/test_says: $(wildcard chapters/*.h)

#   two compilations at once; what they print stays together
test:
	@$(MAKE) --no-print-directory -j2 $(TEST_ALL) $(CHAPTERS) $(EXAMPLES)
	@MPIEXEC="$(MPIEXEC)" MPICC="$(MPICC)" sh tests/run.sh

test-elsewhere:
	@$(MAKE) --no-print-directory -j2 build/tests/gcc/test_net $(TEST_ELSE)
	@sh tests/run.sh elsewhere

deps-elsewhere:
	sh chapters/get_deps.sh elsewhere

# what dtrain and PyTorch differ by, as a page
conformance: build/tests/gcc/test_net build/tests/gcc/test_norm build/tests/gcc/test_steps
	@sh tests/conformance.sh

# under a real Slurm, which it starts and ends: not part of make test
test-slurm: build/tests/mpi/fault ch12
	sh tests/test_slurm.sh

# Minutes, not part of make test. Faults under a sanitizer: every request for memory and every call of the system that fails, in turn, and the damage
# to a checkpoint, byte by byte; and runs that are killed: twenty of each net, and ten times a rank of one job.
test-injection: $(addprefix build/tests/gcc-sanitize/,test_faults test_checkpoint test_files) build/tests/clang-sanitize/test_faults ch12 wideresnet
	@MPIEXEC="$(MPIEXEC)" sh tests/run.sh injection

# twenty seeds, a class of forty with hostile submissions, the handout: minutes, not part of make test
test-labs-more: $(GRADERS)
	sh tests/test_labs_more.sh

# What takes too long for make test, each reproducible by itself; tests/README.md has the table of them. test-more: all but those that
# need a launcher (test-slurm), a browser (test-pages) or half an hour alone (test-long, mutation).
test-more: test-builds test-sanitizers test-injection test-elsewhere fuzz

# compilers, languages, flags, processors, C libraries that strangers have
test-builds: build/tests/contract_calls.h
	@MPICC="$(MPICC)" sh tests/test_builds.sh $(PARTS)

# the whole suite under address, undefined, leak and thread sanitizers, MPI runs of 3 ranks with it; chapters 0 to 6 under valgrind
test-sanitizers: build/tests/contract_calls.h
	@MPICC="$(MPICC)" MPIEXEC="$(MPIEXEC)" sh tests/test_sanitizers.sh $(PARTS)

# the machine's kernels against figures/bench.csv, by ratio to the measured peak; alone on the machine
bench-compare: build/bench
	@tests/bench-compare

# small changes to Part I: which of them does no test notice?
MUTANTS = 400
mutation: build/tests/contract_calls.h
	python3 tests/mutate_header.py --sample $(MUTANTS)

# 200 epochs on three ranks under load, twice: memory, throughput, bits
test-long: ch12
	@MPIEXEC="$(MPIEXEC)" sh tests/test_long.sh

# Readers of files, command lines and charts on drawn bytes, under libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer (clang;
# Debian: libclang-rt-14-dev): `make fuzz SECONDS=60`, so long for each of the targets. `make fuzz-seeds` writes the valid inputs anew.
SECONDS = 60
FUZZ    = clang -std=c11 -D_DEFAULT_SOURCE -ffp-contract=off -g -O1 -Wall -Wextra -Werror
fuzz: build/fuzz/fuzz
	@SECONDS_EACH=$(SECONDS) sh tests/fuzz/run.sh

build/fuzz/fuzz: tests/fuzz/fuzz.c dtrain.h $(wildcard chapters/*.h)
	@mkdir -p $(@D)
	$(FUZZ) -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $@ $< $(LDLIBS)

fuzz-seeds: tests/fuzz/fuzz.c dtrain.h
	@mkdir -p build/fuzz
	$(FUZZ) -DFUZZ_SEEDS -o build/fuzz/seeds $< $(LDLIBS)
	build/fuzz/seeds --seeds tests/fuzz/seeds

# one family: `make test-kernels`, test-net, test-train, test-header, test-cli, test-mpi ...
test-%: $(TEST_ALL) $(CHAPTERS)
	@MPIEXEC="$(MPIEXEC)" MPICC="$(MPICC)" sh tests/run.sh $*

.PHONY: test-more test-builds test-sanitizers test-long bench-compare mutation conformance fuzz fuzz-seeds test test-slurm test-injection test-labs-more test-elsewhere deps-elsewhere
