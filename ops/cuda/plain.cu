// Pictures that lie in their files as pixels (BMP, PNM). The CPU has looked where, and that all are there.

// Row names as in ops/codecs/plain_on_gpu.py.
struct Picture {
    long long source;       // first byte of the first pixel shown
    long long destination;  // first byte of the pixels
    long long pitch;        // from a line to the one below
    int step, channels;     // bytes of a pixel in the file (1, 3 or 4), and in the result (1 or 3)
    int y, x;               // the window's corner
    int shown_rows, shown_columns;
    int turned, unused;     // the first channel and the third change places
};

// blockIdx.y is the picture, blocks of a picture take lines in turns.
extern "C" __global__ void plain_pixels(const unsigned char *files, const Picture *pictures, unsigned char *out) {
    const Picture p = pictures[blockIdx.y];
    for (int row = blockIdx.x; row < p.shown_rows; row += gridDim.x) {
        const unsigned char *from = files + p.source + (p.y + row) * p.pitch + static_cast<long long>(p.x) * p.step;
        unsigned char *to = out + p.destination + static_cast<long long>(row) * p.shown_columns * p.channels;
        for (int x = threadIdx.x; x < p.shown_columns; x += blockDim.x)
            for (int c = 0; c < p.channels; ++c) {
                const int source = p.step == 1 ? 0 : p.turned ? 2 - c : c;
                to[static_cast<long long>(x) * p.channels + c] = from[static_cast<long long>(x) * p.step + source];
            }
    }
}
