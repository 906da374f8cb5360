# make grade-lab04     grades lab04.c; ARGS="--seed 5 speed": those numbers again, and only the
#                      tasks whose name has that word
# make run-lab12       lab 12's measurements with a real net: the table and two graphs. It takes
#                      minutes; ARGS="--epochs 1 --runs 3 --most 5"
# Your files are compiled by themselves, and must not include dtrain.h: the answers are to be yours.
CC       = gcc
LABFLAGS = -std=c11 -O3 -march=native

grade-lab%: grader/grade% grader/run% lab%.c
	@CC="$(CC)" LABFLAGS="$(LABFLAGS)" sh grader/grade.sh $* lab$*.c grader $(ARGS)

grader/grade%: grader/grade%.c grader/grade.h grader/sandbox.h grader/messages.h
	@$(CC) -std=c11 -D_DEFAULT_SOURCE -O2 -ffp-contract=off -o $@ $< -lm

grader/run%: grader/grade%.c grader/runner.h grader/sandbox.h grader/messages.h
	@$(CC) -D_DEFAULT_SOURCE $(LABFLAGS) -DRUNNER -o $@ $< -lm -pthread -ldl

run-lab12: grader/measure12
	./grader/measure12 $(ARGS)

grader/measure12: lab12.c grader/run12.c grader/dtrain.o
	@$(CC) -D_DEFAULT_SOURCE $(LABFLAGS) -c -o grader/lab12.o lab12.c
	@$(CC) -std=c11 -D_DEFAULT_SOURCE -O2 -I. -DDTRAIN_WITH_THREADS -DDTRAIN_WITH_CHARTS \
	    -o $@ grader/run12.c grader/lab12.o grader/dtrain.o -lm -pthread

grader/dtrain.o: dtrain.h
	@echo "dtrain.h is compiled once: a minute"
	@$(CC) -std=c11 -D_DEFAULT_SOURCE -O3 -march=native -ffp-contract=off -DDTRAIN_WITH_THREADS \
	    -DDTRAIN_WITH_CHARTS -DDTRAIN_IMPLEMENTATION -x c -c -o $@ $<

.PHONY: run-lab12
.SECONDARY:
