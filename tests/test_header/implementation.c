/* The implementation, once: after the declarations, and with two more includes behind it that must change nothing. */
#include "dtrain.h"
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"
#include "dtrain.h"
#undef DTRAIN_IMPLEMENTATION
#include "dtrain.h"

extern int dtrain_h_keeps_its_promise; /* no empty file without dtrain.h either */
int dtrain_h_keeps_its_promise;
