// The bridge's function types held against a library's own header: compiled, never run. HEADER is
// the one to include; CHECKS names a file of lines SAME_CALL(theirs, ours).
//
// Alike means: as many arguments, each passed in the same way (a handle is a pointer in one library
// and a 64-bit number in the other), and what a pointer points to of the same size.
#define _Static_assert static_assert
#define __HIP_PLATFORM_AMD__ 1
#include "symbols.h"

#include HEADER

#include <type_traits>

template <class Ours, class Theirs> constexpr bool points_alike() {
    using Our = std::remove_cv_t<std::remove_pointer_t<Ours>>;
    using Their = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
    if constexpr (std::is_void_v<Our> || std::is_void_v<Their>) {
        return true;
    } else if constexpr (std::is_same_v<Our, sm_ccl_config>) {
        return sizeof(Our) <= sizeof(Their); // the beginning of theirs
    } else {
        return sizeof(Our) == sizeof(Their);
    }
}

template <class Ours, class Theirs> constexpr bool passed_alike() {
    if constexpr (sizeof(Ours) != sizeof(Theirs) ||
                  std::is_scalar_v<Ours> != std::is_scalar_v<Theirs> ||
                  std::is_floating_point_v<Ours> != std::is_floating_point_v<Theirs>) {
        return false;
    } else if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
        return points_alike<Ours, Theirs>();
    } else {
        return true;
    }
}

template <class Our, class... Ours, class Their, class... Theirs>
constexpr bool called_alike(Our (*)(Ours...), Their (*)(Theirs...)) {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
        return false;
    } else {
        return passed_alike<Our, Their>() && (passed_alike<Ours, Theirs>() && ...);
    }
}

#define SAME_CALL(theirs, ours)                                                                    \
    static_assert(called_alike(static_cast<ours>(nullptr), static_cast<decltype(&theirs)>(nullptr)), \
                  #theirs " is called otherwise");

#include CHECKS

#ifdef NCCL_CONFIG_INITIALIZER
constexpr ncclConfig_t defaults = NCCL_CONFIG_INITIALIZER;
static_assert(defaults.magic == static_cast<unsigned>(SM_CCL_CONFIG_MAGIC));
static_assert(defaults.version >= SM_CCL_CONFIG_VERSION);
#endif
