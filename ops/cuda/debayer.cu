// debayer (ops/color/debayer.py): a thread computes one pixel; the algorithm is that of debayer_cpu.py.
#include "convert.cuh"
#include "division.cuh"

// grid (tiles * images); `sizes` [2] is rows, columns, `blue` [2] the position of blue.
template <typename T>
__global__ void bilinear(const T* source, const long long* base, const long long* sizes, int tiles,
                         const long long* blue, T* target, const long long* out_base) {
    const int picture = blockIdx.x / tiles;
    const int rows = static_cast<int>(sizes[2 * picture]), columns = static_cast<int>(sizes[2 * picture + 1]);
    const long long i = static_cast<long long>(blockIdx.x % tiles) * blockDim.x + threadIdx.x;
    if (i >= static_cast<long long>(rows) * columns) return;
    T* o = target + out_base[picture] + 3 * i;
    if (rows < 3 || columns < 3) {
        o[0] = o[1] = o[2] = 0;
        return;
    }
    long long line = i;
    const int x = static_cast<int>(split(line, columns)), y = static_cast<int>(line);
    const int u = x < 1 ? 1 : x > columns - 2 ? columns - 2 : x, v = y < 1 ? 1 : y > rows - 2 ? rows - 2 : y;
    const bool blue_row = ((v + 1 + blue[2 * picture]) & 1) == 0, blue_column = ((u + 1 + blue[2 * picture + 1]) & 1) == 0;
    const T* s = source + base[picture] + static_cast<long long>(v) * columns + u;
    const int own = s[0], left_right = s[-1] + s[1], up_down = s[-columns] + s[columns];
    if (blue_row == blue_column) {  // red or blue
        const int other = (s[-columns - 1] + s[-columns + 1] + s[columns - 1] + s[columns + 1] + 2) >> 2;
        o[0] = blue_row ? other : own;
        o[1] = (left_right + up_down + 2) >> 2;
        o[2] = blue_row ? own : other;
    } else {
        const int beside = (left_right + 1) >> 1, above = (up_down + 1) >> 1;
        o[0] = blue_row ? above : beside;
        o[1] = own;
        o[2] = blue_row ? beside : above;
    }
}
