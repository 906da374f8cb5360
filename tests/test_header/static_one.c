/* DT_STATIC: two files hold an implementation each, and know nothing of one another. */
#define DT_STATIC
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

dt_err fails_here(void);
dt_err fails_here(void) { return dt_net_build(dt_net_new(0, 0, 0), &(dt_build_desc){ .batch = 1 }); }
