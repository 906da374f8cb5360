/* The implementation is C, and stands in one C file: this one. The C++ program examples/cpp_app.cpp links it. Whatever is
   defined here (threads, charts, DT_MALLOC) must be defined alike wherever dtrain.h is included. */
#define DTRAIN_IMPLEMENTATION
#include "../dtrain.h"
