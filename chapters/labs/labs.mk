# ---- Labs: exercises that grade themselves. What students get is made from the solved files here.
#   make lab04                   the handout, labs/lab04.c
#   make labs DIR=/somewhere     all of them, for students, as a folder of its own
#   make grade-lab04             points, and what was wanted: FILE=labs/lab04.c ARGS="--seed 5"
#   make grade-all DIR=folder    folder/NAME/lab04.c ... into a table of points, out/grades.csv;
#                                each student's inputs are drawn from NAME and SEED=1
#   make mutants                 what share of small changes to the solved files the graders notice
LABS     = $(patsubst chapters/labs/lab%.c,%,$(wildcard chapters/labs/lab[0-9][0-9].c))
DIR      = labs
SEED     = 1
LABFLAGS = -std=c11 -O3 $(ARCH)
GRADERS  = $(LABS:%=build/labs/grade%) $(LABS:%=build/labs/run%)

$(addprefix lab,$(LABS)): lab%:
	@sh chapters/labs/handout.sh $* labs

labs:
	@sh chapters/labs/handout.sh all $(DIR)

$(addprefix grade-lab,$(LABS)): grade-lab%: build/labs/grade% build/labs/run%
	@CC="$(CC)" LABFLAGS="$(LABFLAGS)" sh chapters/labs/grade.sh $* \
	    $(or $(FILE),labs/lab$*.c) build/labs $(ARGS)

grade-all: $(GRADERS)
	@mkdir -p out
	@CC="$(CC)" LABFLAGS="$(LABFLAGS)" DETAILS=out/grades sh chapters/labs/grade_all.sh \
	    $(DIR) build/labs $(SEED) $(ARGS) >out/grades.csv && cat out/grades.csv

mutants: $(GRADERS)
	@CC="$(CC)" python3 tests/mutate_labs.py

$(LABS:%=build/labs/grade%): build/labs/grade%: chapters/labs/grade%.c $(wildcard chapters/labs/*.h)
	@mkdir -p build/labs
	$(CC) -std=c11 -D_DEFAULT_SOURCE -O2 -ffp-contract=off $(WARN) -o $@ $< -lm

#   the runner has no answers in it; what it measures against is compiled as a submission is
$(LABS:%=build/labs/run%): build/labs/run%: chapters/labs/grade%.c $(wildcard chapters/labs/*.h)
	@mkdir -p build/labs
	$(CC) -D_DEFAULT_SOURCE $(LABFLAGS) $(WARN) -DRUNNER -o $@ $< -lm -pthread -ldl

.PHONY: labs grade-all mutants run-lab12 $(addprefix lab,$(LABS)) $(addprefix grade-lab,$(LABS))

# ---- Lab 12's measurements, ARGS="--epochs 1 --runs 3 --most 5": out/lab12.csv and two graphs
run-lab12: build/labs/run12.o build/dtrain.o
	@mkdir -p out
	$(CC) -D_DEFAULT_SOURCE $(LABFLAGS) -Wall -Wextra -c -o build/labs/lab12.o \
	    $(or $(FILE),labs/lab12.c)
	$(CC) -o build/labs/measure12 $< build/labs/lab12.o build/dtrain.o $(LDLIBS)
	./build/labs/measure12 --to out $(ARGS)

build/labs/run12.o: chapters/labs/run12.c chapters/labs/model.h dtrain.h build/flags
	@mkdir -p build/labs
	$(CC) $(CFLAGS) -I. $(CHAPTER) -c -o $@ $<
