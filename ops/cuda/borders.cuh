// Access to an image for kernels that take pixels from other positions, and the values outside of it.
#pragma once

enum Geometry { PLANES, ROWS, COLUMNS, CHANNELS, HEIGHT, WIDTH, FIELDS };
enum Border { FILL, EDGE, REFLECT_1001, REFLECT_101, WRAP };

// Return the index inside [0, n) that replaces `i`, or -1 for a value outside.
__device__ __forceinline__ int inside(int i, int n, int border) {
    if (i >= 0 && i < n) return i;
    if (border == FILL) return -1;
    if (border == EDGE || n == 1) return i < 0 ? 0 : n - 1;
    const int period = border == WRAP ? n : border == REFLECT_1001 ? 2 * n : 2 * n - 2;
    i %= period;
    if (i < 0) i += period;
    if (i < n) return i;
    return border == REFLECT_1001 ? 2 * n - 1 - i : 2 * n - 2 - i;
}
