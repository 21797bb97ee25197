/** Settings from the environment. */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

const char *emu_setting_text(const char *name, const char *fallback)
{
    char variable[64];
    snprintf(variable, sizeof variable, "SLURMMESH_EMULATOR_%s", name);
    const char *text = getenv(variable);
    return text && *text ? text : fallback;
}

uint64_t emu_setting(const char *name, uint64_t fallback)
{
    const char *text = emu_setting_text(name, NULL);
    return text ? strtoull(text, NULL, 0) : fallback;
}

int emu_setting_version(const char *name, const char *fallback, int major_unit, int minor_unit)
{
    int parts[3] = {0, 0, 0};
    const char *text = emu_setting_text(name, fallback);
    int found = sscanf(text, "%d.%d.%d", &parts[0], &parts[1], &parts[2]);
    if (found == 1 && parts[0] >= minor_unit)
        return parts[0];
    return parts[0] * major_unit + parts[1] * minor_unit + parts[2];
}

bool emu_lends_descriptors(void)
{
    int minor = emu_hip_version() / 100000;
    return EMU_NAME(true, false) && minor >= 712 && minor <= 714;
}

int emu_hip_version(void)
{
#ifdef EMULATOR_OLD
    return emu_setting_version("HIP_VERSION", "6.4.43484", 10000000, 100000);
#else
    return emu_setting_version("HIP_VERSION", "7.1.25424", 10000000, 100000);
#endif
}
