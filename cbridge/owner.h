/* The one thing that other files do with an owner. */
#ifndef SLURMMESH_OWNER_H
#define SLURMMESH_OWNER_H
#include "slurmmesh_bridge.h"

/* One holder more; sm_owner_drop ends it. */
void sm_owner_hold(sm_owner *owner);

#endif
