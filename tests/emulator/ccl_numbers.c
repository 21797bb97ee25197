/** Arithmetic on all types: small floats as double, rounded to nearest even after each step. */
#include "ccl.h"

#include <math.h>
#include <string.h>

/** A float format below 32 bits. */
struct format {
    int exponent_bits;
    int mantissa_bits;
    bool infinite; /**< Has infinities; else the highest number of all ones is the only NaN. */
};
static const struct format float16 = {5, 10, true}, bfloat16 = {8, 7, true};
static const struct format float8e4m3 = {4, 3, false}, float8e5m2 = {5, 2, true};

size_t ccl_size_of(int type)
{
    static const size_t sizes[CCL_TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < CCL_TYPES ? sizes[type] : 0;
}

static double decode(const struct format *format, unsigned bits)
{
    int mantissa_bits = format->mantissa_bits, exponent_max = (1 << format->exponent_bits) - 1;
    int bias = exponent_max >> 1;
    int mantissa = (int)(bits & ((1u << mantissa_bits) - 1));
    int exponent = (int)(bits >> mantissa_bits) & exponent_max;
    bool negative = bits >> (mantissa_bits + format->exponent_bits) & 1;
    double value;
    if (exponent == exponent_max && format->infinite)
        value = mantissa ? NAN : INFINITY;
    else if (exponent == exponent_max && mantissa == (1 << mantissa_bits) - 1)
        value = NAN;
    else if (exponent)
        value = ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    else
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    return negative ? -value : value;
}

static unsigned encode(const struct format *format, double value)
{
    int mantissa_bits = format->mantissa_bits, exponent_max = (1 << format->exponent_bits) - 1;
    int bias = exponent_max >> 1;
    unsigned sign = (signbit(value) ? 1u : 0u) << (mantissa_bits + format->exponent_bits);
    unsigned all_ones = (1u << (mantissa_bits + format->exponent_bits)) - 1;
    unsigned infinity = (unsigned)exponent_max << mantissa_bits;
    if (isnan(value))
        return sign | (format->infinite ? infinity | 1u << (mantissa_bits - 1) : all_ones);
    value = fabs(value);
    int exponent = 1 - bias;
    if (value > 0 && !isinf(value)) {
        int power;
        frexp(value, &power); /* value = 0.5 to 1 times 2 to the power */
        exponent = power - 1 > 1 - bias ? power - 1 : 1 - bias;
    }
    double scaled = isinf(value) ? value : nearbyint(ldexp(value, mantissa_bits - exponent));
    /* Both a mantissa that rounds up to the next power and numbers without a leading one add up. */
    double number = scaled + ldexp(exponent + bias - 1, mantissa_bits);
    double limit = format->infinite ? infinity : all_ones;
    return sign | (number >= limit ? (format->infinite ? infinity : all_ones) : (unsigned)number);
}

static const struct format *format_of(int type)
{
    switch (type) {
    case CCL_FLOAT16:
        return &float16;
    case CCL_BFLOAT16:
        return &bfloat16;
    case CCL_FLOAT8E4M3:
        return &float8e4m3;
    default:
        return &float8e5m2;
    }
}

static double combine_double(int reduction, double a, double b)
{
    switch (reduction) {
    case CCL_PROD:
        return a * b;
    case CCL_MAX:
        return isnan(a) || a > b ? a : b;
    case CCL_MIN:
        return isnan(a) || a < b ? a : b;
    default:
        return a + b;
    }
}

/** Integers wrap around, as those of a GPU do. */
static uint64_t combine_unsigned(int reduction, uint64_t a, uint64_t b)
{
    switch (reduction) {
    case CCL_PROD:
        return a * b;
    case CCL_MAX:
        return a > b ? a : b;
    case CCL_MIN:
        return a < b ? a : b;
    default:
        return a + b;
    }
}

static int64_t combine_signed(int reduction, int64_t a, int64_t b)
{
    switch (reduction) {
    case CCL_MAX:
        return a > b ? a : b;
    case CCL_MIN:
        return a < b ? a : b;
    default:
        return (int64_t)combine_unsigned(reduction, (uint64_t)a, (uint64_t)b);
    }
}

/** Each element of an array through an expression of a = into[i], b = from[i]. */
#define EACH(element, wide, expression)                                                            \
    do {                                                                                           \
        element *to_ = into;                                                                       \
        const element *from_ = from;                                                               \
        for (size_t i_ = 0; i_ < count; i_++) {                                                    \
            wide a = (wide)to_[i_], b = (wide)from_[i_];                                           \
            to_[i_] = (element)(expression);                                                       \
        }                                                                                          \
    } while (0)

static void combine_small(int type, int reduction, void *into, const void *from, size_t count)
{
    const struct format *format = format_of(type);
#define SMALL                                                                                      \
    encode(format, combine_double(reduction, decode(format, a), decode(format, b)))
    if (ccl_size_of(type) == 2)
        EACH(uint16_t, unsigned, SMALL);
    else
        EACH(uint8_t, unsigned, SMALL);
}

void ccl_combine(int type, int reduction, void *into, const void *from, size_t count)
{
    switch (type) {
    case CCL_INT8:
        EACH(int8_t, int64_t, combine_signed(reduction, a, b));
        break;
    case CCL_UINT8:
        EACH(uint8_t, uint64_t, combine_unsigned(reduction, a, b));
        break;
    case CCL_INT32:
        EACH(int32_t, int64_t, combine_signed(reduction, a, b));
        break;
    case CCL_UINT32:
        EACH(uint32_t, uint64_t, combine_unsigned(reduction, a, b));
        break;
    case CCL_INT64:
        EACH(int64_t, int64_t, combine_signed(reduction, a, b));
        break;
    case CCL_UINT64:
        EACH(uint64_t, uint64_t, combine_unsigned(reduction, a, b));
        break;
    case CCL_FLOAT32: /* A double holds any sum or product of two exactly enough to round once. */
        EACH(float, double, combine_double(reduction, a, b));
        break;
    case CCL_FLOAT64:
        EACH(double, double, combine_double(reduction, a, b));
        break;
    default:
        combine_small(type, reduction, into, from, count);
    }
}

void ccl_divide(int type, void *into, size_t count, int ranks)
{
    const void *from = into;
    switch (type) {
    case CCL_INT8:
        EACH(int8_t, int64_t, ((void)b, a / ranks));
        break;
    case CCL_UINT8:
        EACH(uint8_t, uint64_t, ((void)b, a / (uint64_t)ranks));
        break;
    case CCL_INT32:
        EACH(int32_t, int64_t, ((void)b, a / ranks));
        break;
    case CCL_UINT32:
        EACH(uint32_t, uint64_t, ((void)b, a / (uint64_t)ranks));
        break;
    case CCL_INT64:
        EACH(int64_t, int64_t, ((void)b, a / ranks));
        break;
    case CCL_UINT64:
        EACH(uint64_t, uint64_t, ((void)b, a / (uint64_t)ranks));
        break;
    case CCL_FLOAT32:
        EACH(float, double, ((void)b, a / ranks));
        break;
    case CCL_FLOAT64:
        EACH(double, double, ((void)b, a / ranks));
        break;
    default: {
        const struct format *format = format_of(type);
        if (ccl_size_of(type) == 2)
            EACH(uint16_t, unsigned, ((void)b, encode(format, decode(format, a) / ranks)));
        else
            EACH(uint8_t, unsigned, ((void)b, encode(format, decode(format, a) / ranks)));
    }
    }
}
