#define DT_STATIC
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

dt_err fails_here(void);
int main(void) { return fails_here() == DT_ESHAPE && dt_error()[0] == '\0' ? 0 : 1; }
