# ---- Labs: exercises that grade themselves. What students get is made from the solved files here.
#   make lab04                   the handout, labs/lab04.c        make labs DIR=/somewhere   all, for students, as a folder of its own
#   make grade-lab04             points, and what was wanted      FILE=labs/lab04.c ARGS="--seed 5 padding"
#   make grade-all DIR=folder    folder/NAME/lab04.c ... into a table of points, out/grades.csv    SEED=1
LABS = $(patsubst chapters/labs/lab%.c,%,$(wildcard chapters/labs/lab[0-9][0-9].c))
DIR  = labs
SEED = 1

$(addprefix lab,$(LABS)): lab%:
	@sh chapters/labs/handout.sh $* labs

labs:
	@sh chapters/labs/handout.sh all $(DIR)

$(addprefix grade-lab,$(LABS)): grade-lab%: build/labs/grade%
	@CC="$(CC)" LABFLAGS="-std=c11 -O3 $(ARCH)" sh chapters/labs/grade.sh $* $(or $(FILE),labs/lab$*.c) build/labs/grade$* $(ARGS)

grade-all: $(LABS:%=build/labs/grade%)
	@mkdir -p out
	@CC="$(CC)" LABFLAGS="-std=c11 -O3 $(ARCH)" sh chapters/labs/grade_all.sh $(DIR) $(SEED) >out/grades.csv && cat out/grades.csv

$(LABS:%=build/labs/grade%): build/labs/grade%: chapters/labs/grade%.c chapters/labs/grade.h build/dtrain.o
	@mkdir -p build/labs
	$(CC) $(CFLAGS) -I. $(CHAPTER) -o $@ $< build/dtrain.o $(LDLIBS) -ldl

.PHONY: labs grade-all $(addprefix lab,$(LABS)) $(addprefix grade-lab,$(LABS))
