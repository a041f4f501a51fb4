/* What the parts of a memory plan are called (plan.def); apart from plan.c so that a server over another engine needs
 * nothing else of this one. */
#include "engine.h"

const plan_part_info *plan_part_describe(plan_part p) {
    static const plan_part_info parts[] = {
#define PLAN(name, key, on_device, what) {key, what, on_device},
#include "plan.def"
#undef PLAN
    };
    return &parts[p];
}
