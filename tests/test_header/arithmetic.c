/* Says what the library says of the flags that this was compiled with, and of the processor as it finds it. Only what is called
   is generated (DT_STATIC), so that compiling is quick. */
#define DT_STATIC
#define DTRAIN_IMPLEMENTATION
#include "dtrain.h"

int main(void) {
    const dt_err error = dti_check_arithmetic();
    if (error != DT_OK) printf("error: %s\n", dt_error());
    return error == DT_OK ? 0 : 1;
}
