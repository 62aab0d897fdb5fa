// A stand-in for the driver's libnvidia-opticalflow: version 2.0 of the Optical Flow API for CUDA, on the CPU. It finds
// motion by whole pixels, near where its hints say, and keeps an account of what is alive. Structures are written down
// here as the public headers have them, so that the binding is compared with something.
#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

struct Init {
    uint32_t width, height, outGridSize, hintGridSize, mode, perfLevel, enableExternalHints, enableOutputCost;
    void *hPrivData;
    uint32_t disparityRange, enableRoi;
};
struct Descriptor { uint32_t width, height, bufferUsage, bufferFormat; };
struct Stride { uint32_t strideXInBytes, strideYInBytes; };
struct StrideInfo { Stride strideInfo[3]; uint32_t numPlanes; };
struct Buffer;
struct In {
    Buffer *inputFrame, *referenceFrame, *externalHints;
    uint32_t disableTemporalHints, padding;
    void *hPrivData;
    uint32_t padding2, numRois;
    void *roiData;
};
struct Out { Buffer *outputBuffer, *outputCostBuffer; void *hPrivData; };

enum { SUCCESS, NOT_AVAILABLE, UNSUPPORTED, GONE, BAD_POINTER, BAD_PARAMETER, BAD_CALL, BAD_VERSION };
enum { CREATE, INIT, BUFFER, ARRAY, ADDRESS, STRIDES, STREAMS, EXECUTE, FREE, DESTROY, ERROR_TEXT, CAPABILITIES, COUNT };

struct Handle {
    bool initialised = false;
    Init init{};
    void *streams[2] = {};
    int buffers = 0;
    std::vector<int16_t> before;
};
struct Buffer {
    Handle *owner;
    Descriptor descriptor;
    uint32_t pitch;
    std::vector<uint8_t> memory;
};

static int calls[COUNT], fails[COUNT], which_fails[COUNT], handles, buffers;
static int known_version = 0x20;

// What a call answers: SUCCESS, or what a test asked for of one call.
static int asked(int which) { return ++calls[which] == which_fails[which] ? fails[which] : SUCCESS; }

extern "C" void fake_reset() {
    memset(calls, 0, sizeof calls), memset(which_fails, 0, sizeof which_fails);
    known_version = 0x20;
}
extern "C" void fake_fail(int which, int status, int call) { fails[which] = status, which_fails[which] = call; }
extern "C" void fake_version(int version) { known_version = version; }
extern "C" int fake_calls(int which) { return calls[which]; }
extern "C" int fake_alive() { return handles + buffers; }
extern "C" int fake_sizes(int which) {
    const int found[] = {sizeof(Init), sizeof(Descriptor), sizeof(StrideInfo), sizeof(In), sizeof(Out),
                         offsetof(Init, hPrivData), offsetof(Init, enableRoi), offsetof(In, disableTemporalHints),
                         offsetof(In, numRois), offsetof(In, roiData), offsetof(Out, hPrivData)};
    return found[which];
}

static int create(void *context, Handle **handle) {
    if (int status = asked(CREATE)) return status;
    if (!context) return BAD_POINTER;
    *handle = new Handle;
    ++handles;
    return SUCCESS;
}

static int init(Handle *handle, const Init *init) {
    if (int status = asked(INIT)) return status;
    const uint32_t grid = init->outGridSize, hint = init->hintGridSize, level = init->perfLevel;
    if (init->mode != 1 || (grid != 1 && grid != 2 && grid != 4) || (level != 5 && level != 10 && level != 20) ||
        init->hPrivData || init->disparityRange || init->enableRoi || init->enableOutputCost ||
        init->enableExternalHints != (hint > 0) || (hint && hint < grid) || init->width < 32 || init->height < 16 ||
        init->width > 8192 || init->height > 8192)
        return BAD_PARAMETER;
    handle->init = *init;
    handle->initialised = true;
    return SUCCESS;
}

static int create_buffer(Handle *handle, const Descriptor *wanted, int type, Buffer **buffer) {
    if (int status = asked(BUFFER)) return status;
    const Init &init = handle->init;
    if (!handle->initialised || type != 2) return BAD_CALL;
    const uint32_t side = wanted->bufferUsage == 1 ? 1 : wanted->bufferUsage == 2 ? init.outGridSize : init.hintGridSize;
    const uint32_t format = wanted->bufferFormat;
    if (!side || wanted->width != (init.width + side - 1) / side || wanted->height != (init.height + side - 1) / side ||
        (wanted->bufferUsage == 1 ? format != 1 && format != 3 : format != 5))
        return BAD_PARAMETER;
    const uint32_t pitch = (wanted->width * (format == 1 ? 1 : 4) + 127) / 64 * 64;
    *buffer = new Buffer{handle, *wanted, pitch, std::vector<uint8_t>(size_t(pitch) * wanted->height, 0xA5)};
    ++handle->buffers, ++buffers;
    return SUCCESS;
}

static void *array_of(Buffer *) { return nullptr; }

static uint64_t address_of(Buffer *buffer) { return reinterpret_cast<uint64_t>(buffer->memory.data()); }

static int strides_of(Buffer *buffer, StrideInfo *info) {
    if (int status = asked(STRIDES)) return status;
    memset(info, 0, sizeof *info);
    info->strideInfo[0] = {buffer->pitch, buffer->descriptor.height};
    info->numPlanes = 1;
    return SUCCESS;
}

static int set_streams(Handle *handle, void *input, void *output) {
    if (int status = asked(STREAMS)) return status;
    handle->streams[0] = input, handle->streams[1] = output;
    return SUCCESS;
}

// The light of each pixel and of a margin around them; empty where the fourth byte of a colour was not written.
static const int MARGIN = 48;
static std::vector<uint8_t> light(const Buffer &picture) {
    const Descriptor &d = picture.descriptor;
    const int height = d.height, width = d.width, across = width + 2 * MARGIN;
    std::vector<uint8_t> found(size_t(height + 2 * MARGIN) * across);
    for (int y = -MARGIN; y < height + MARGIN; ++y)
        for (int x = -MARGIN; x < width + MARGIN; ++x) {
            const int cy = std::min(std::max(y, 0), height - 1), cx = std::min(std::max(x, 0), width - 1);
            const uint8_t *p = picture.memory.data() + size_t(cy) * picture.pitch + (d.bufferFormat == 1 ? cx : 4 * cx);
            if (d.bufferFormat != 1 && p[3] != 255) return {};
            found[size_t(y + MARGIN) * across + x + MARGIN] =
                d.bufferFormat == 1 ? p[0] : (5 * p[0] + 2 * p[1] + p[2]) / 8;
        }
    return found;
}

static int execute(Handle *handle, const In *in, Out *out) {
    if (int status = asked(EXECUTE)) return status;
    const Init &init = handle->init;
    if (!handle->initialised || !handle->streams[0] || in->padding || in->padding2 || in->numRois || in->roiData ||
        in->hPrivData || out->outputCostBuffer || out->hPrivData || in->inputFrame == in->referenceFrame ||
        bool(in->externalHints) != bool(init.enableExternalHints) || in->inputFrame->owner != handle ||
        in->referenceFrame->owner != handle || out->outputBuffer->owner != handle)
        return BAD_CALL;
    const int side = init.outGridSize, down = (init.height + side - 1) / side, across = (init.width + side - 1) / side;
    const bool again = !in->disableTemporalHints && !handle->before.empty();
    const std::vector<uint8_t> picture = light(*in->inputFrame), reference = light(*in->referenceFrame);
    if (picture.empty() || reference.empty()) return BAD_PARAMETER;
    const int row = init.width + 2 * MARGIN;
    std::vector<int16_t> found(size_t(down) * across * 2);
    for (int y = 0; y < down; ++y)
        for (int x = 0; x < across; ++x) {
            int16_t *vector = &found[2 * (size_t(y) * across + x)];
            int start[2] = {0, 0};
            if (in->externalHints) {
                const Buffer &hints = *in->externalHints;
                const int h = init.hintGridSize;
                const int16_t *hint =
                    reinterpret_cast<const int16_t *>(hints.memory.data() + size_t(y * side / h) * hints.pitch) +
                    2 * (x * side / h);
                start[0] = hint[0] / 32, start[1] = hint[1] / 32;
            } else if (again) {
                const int16_t *last = &handle->before[2 * (size_t(y) * across + x)];
                start[0] = last[0] / 32, start[1] = last[1] / 32;
            }
            for (int k = 0; k < 2; ++k) start[k] = std::min(std::max(start[k], 8 - MARGIN), MARGIN - 9);
            const uint8_t *here = &picture[size_t(y * side + MARGIN) * row + x * side + MARGIN];
            const uint8_t *there = &reference[size_t(y * side + MARGIN) * row + x * side + MARGIN];
            int best = INT_MAX;
            for (int dy = -4; dy <= 4; ++dy)
                for (int dx = -4; dx <= 4; ++dx) {
                    int cost = std::abs(dy) + std::abs(dx);  // of the same, the nearest
                    for (int v = -4; v < 4; ++v)
                        for (int u = -4; u < 4; ++u) {
                            const int a = here[v * row + u], b = there[(v + start[1] + dy) * row + u + start[0] + dx];
                            cost += 16 * std::abs(a - b);
                        }
                    if (cost < best)
                        best = cost, vector[0] = (start[0] + dx) * 32, vector[1] = (start[1] + dy) * 32;
                }
        }
    Buffer &to = *out->outputBuffer;
    for (int y = 0; y < down; ++y)
        memcpy(to.memory.data() + size_t(y) * to.pitch, &found[2 * size_t(y) * across], 4 * size_t(across));
    handle->before = found;
    return SUCCESS;
}

static int destroy_buffer(Buffer *buffer) {
    ++calls[FREE];
    --buffer->owner->buffers, --buffers;
    delete buffer;
    return SUCCESS;
}

static int destroy(Handle *handle) {
    ++calls[DESTROY];
    if (!handle->initialised || handle->buffers) return BAD_CALL;  // both leak
    --handles;
    delete handle;
    return SUCCESS;
}

static int last_error(Handle *, char text[], uint32_t *size) {
    const char words[] = "as the test wants it";
    if (*size < 80) return BAD_PARAMETER;
    strcpy(text, words);
    *size = sizeof words - 1;
    return SUCCESS;
}

static int capabilities(Handle *, int which, uint32_t *values, uint32_t *size) {
    if (int status = asked(CAPABILITIES)) return status;
    const std::vector<std::vector<uint32_t>> known = {{1, 2, 4}, {1, 2, 4, 8}, {1}, {0}, {32}, {16}, {8192}, {8192}};
    if (which < 0 || which >= int(known.size())) return BAD_PARAMETER;
    *size = uint32_t(known[which].size());
    if (values) std::copy(known[which].begin(), known[which].end(), values);
    return SUCCESS;
}

extern "C" int NvOFAPICreateInstanceCuda(uint32_t version, void **list) {
    if (int(version) > known_version) return BAD_VERSION;
    void *const found[] = {(void *)create, (void *)init, (void *)create_buffer, (void *)array_of, (void *)address_of,
                           (void *)strides_of, (void *)set_streams, (void *)execute, (void *)destroy_buffer,
                           (void *)destroy, (void *)last_error, (void *)capabilities};
    std::copy(found, found + COUNT, list);
    return SUCCESS;
}
