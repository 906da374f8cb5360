# make grade-lab04          grades lab04.c; ARGS="--seed 5 padding": that run again, that task alone
# The first time takes a quarter of a minute: the graders are linked with dtrain.h. Your own files are
# compiled without it, and must not include it.
CC       = gcc
LABFLAGS = -std=c11 -O3 -march=native

grade-lab%: grader/grade% lab%.c
	@CC="$(CC)" LABFLAGS="$(LABFLAGS)" sh grader/grade.sh $* lab$*.c grader/grade$* $(ARGS)

grader/grade%: grader/grade%.c grader/grade.h grader/dtrain.o
	@$(CC) -std=c11 -D_DEFAULT_SOURCE -O1 -ffp-contract=off -I. -DDTRAIN_WITH_THREADS -o $@ $< grader/dtrain.o -lm -pthread -ldl

grader/dtrain.o: dtrain.h
	@$(CC) -std=c11 -D_DEFAULT_SOURCE -O1 -ffp-contract=off -DDTRAIN_WITH_THREADS -DDTRAIN_IMPLEMENTATION -x c -c -o $@ $<

.SECONDARY:
