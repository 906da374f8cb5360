// How often PSGD averages, in steps: for chapters 9 and 12, whose --average-every counts steps, or
// epochs.
#ifndef CH09_INTERVAL_H
#define CH09_INTERVAL_H

#include "chapter.h"

#define AVERAGE_EVERY_HELP "H   steps between two averages, or epochs as 1e, 2e"

// Steps of the rank with the largest share in one epoch.
CHAPTER_FN uint32_t psgd_steps(uint32_t count, uint32_t batch, int ranks) {
    const uint32_t share = (count + (uint32_t)ranks - 1) / (uint32_t)ranks;
    const uint32_t own = dt_psgd_batch(batch, ranks);
    return (share + own - 1) / own;
}

// An average-every option in steps: 16 stays, and -2, which was read as 2e, is two epochs' steps.
CHAPTER_FN uint32_t steps_between(int every, uint32_t steps_an_epoch) {
    const uint64_t steps = every < 0 ? (uint64_t)-every * steps_an_epoch : (uint64_t)every;
    return steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
}

#endif
