#include "dtrain.h"
#include <string.h>
int trains(void);
int main(void) { return trains() && strcmp(dt_version(), DTRAIN_VERSION) == 0 ? 0 : 1; }
