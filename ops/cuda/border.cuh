// Positions outside of a line (ops/filters/axes.py: BORDERS).
#pragma once

enum Border { REFLECT_101, REFLECT_1001, WRAP, CLAMP, CONSTANT };

// Return the position in a line of n that replaces position i, as `border` says; -1 for the constant.
__device__ __forceinline__ int place(int i, int n, int border) {
    if (i >= 0 && i < n) return i;
    if (border == CONSTANT) return -1;
    if (border == CLAMP) return i < 0 ? 0 : n - 1;
    if (border == WRAP) {
        i %= n;
        return i < 0 ? i + n : i;
    }
    if (border == REFLECT_1001) {
        i %= 2 * n;
        if (i < 0) i += 2 * n;
        return i < n ? i : 2 * n - 1 - i;
    }
    if (n == 1) return 0;
    const int period = 2 * n - 2;
    i = (i < 0 ? -i : i) % period;
    return i < n ? i : period - i;
}
