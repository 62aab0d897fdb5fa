"""Names of DALI 2.4's operators under ``fn``, for error messages about operators that dali-run lacks."""

_NAMES = """
audio_decoder audio_resample batch_permutation bb_flip bbox_paste bbox_rotate box_encoder brightness
brightness_contrast caffe2_reader caffe_reader cast cast_like cat clahe coco_reader coin_flip
color_space_conversion color_twist constant contrast coord_flip coord_transform copy crop crop_mirror_normalize
debayer decoders.audio decoders.image decoders.image_crop decoders.image_random_crop decoders.image_slice
decoders.inflate decoders.numpy decoders.video dl_tensor_python_function dump_image element_extract equalize
erase expand_dims experimental.audio_resample experimental.debayer experimental.decoders.image
experimental.decoders.image_crop experimental.decoders.image_random_crop experimental.decoders.image_slice
experimental.decoders.video experimental.dilate experimental.equalize experimental.erode experimental.filter
experimental.inflate experimental.inputs.video experimental.median_blur experimental.peek_image_shape
experimental.readers.fits experimental.readers.video experimental.remap experimental.resize
experimental.tensor_resize experimental.warp_perspective external_source fast_resize_crop_mirror file_reader
filter flip full full_like gaussian_blur get_property grid_mask hsv hue image_decoder image_decoder_crop
image_decoder_random_crop image_decoder_slice io.file.read jitter jpeg_compression_distortion laplacian
lookup_table mel_filter_bank mfcc multi_paste mxnet_reader nemo_asr_reader noise.gaussian noise.salt_and_pepper
noise.shot nonsilent_region normal_distribution normalize numpy_reader one_hot ones ones_like optical_flow pad
paste peek_image_shape per_frame permute_batch power_spectrum preemphasis_filter python_function random.beta
random.choice random.coin_flip random.normal random.uniform random_bbox_crop random_crop_generator
random_resized_crop readers.caffe readers.caffe2 readers.coco readers.file readers.mxnet readers.nemo_asr
readers.numpy readers.sequence readers.tfrecord readers.video readers.video_resize readers.webdataset
reductions.max reductions.mean reductions.mean_square reductions.min reductions.rms reductions.std_dev
reductions.sum reductions.variance reinterpret reshape resize resize_crop_mirror roi_random_crop rotate
saturation segmentation.random_mask_pixel segmentation.random_object_bbox segmentation.select_masks
sequence_reader sequence_rearrange shapes slice spectrogram sphere squeeze ssd_random_crop stack tensor_resize
tfrecord_reader to_decibels transform_translation transforms.combine transforms.crop transforms.rotation
transforms.scale transforms.shear transforms.translation transpose uniform video_reader video_reader_resize
warp_affine water zeros zeros_like
"""
DALI_NAMES = frozenset(_NAMES.split())

FOLDERS = (
    "decoders", "experimental", "experimental.decoders", "experimental.decoders.hidden", "experimental.hidden",
    "experimental.inputs", "experimental.readers", "hidden", "inputs", "io", "io.file", "noise", "random", "readers",
    "readers.hidden", "reductions", "segmentation", "transforms",
)  # fmt: skip
"""Names of the modules below ``fn`` and ``ops``, such as ``decoders``; parents come before their children."""

_V2 = "experimental.torchvision.v2"
_FILES_V2 = "centercrop color compose flips gaussian_blur normalize operator pad randomcrop resize tensor totensor"
_FUNCTIONAL_V2 = "centercrop color crop flips gaussian_blur normalize pad resize totensor"
MOVED = {
    **{f"{_V2}.functional.{name}": "transforms.functional" for name in _FUNCTIONAL_V2.split()},
    **{f"{_V2}.{name}": "transforms" for name in _FILES_V2.split()},
    "backend_impl.tfrecord": "tfrecord",
    "backend_impl.types": "types",
    "backend_impl": "backend",
    "experimental.dynamic": "dynamic",
    _V2: "transforms",
    "experimental.torchvision": "transforms",
}
"""DALI modules that `dali_run` has under other names, with these names."""


def dali_run_name(name: str) -> str:
    """Return the name in `dali_run` of the DALI object ``name``, which is given without ``nvidia.dali``."""
    for dali, name_here in MOVED.items():
        if f"{name}.".startswith(f"{dali}."):
            return name_here + name[len(dali) :]
    return name
