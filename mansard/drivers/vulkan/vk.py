# ruff: noqa
# mypy: ignore-errors
"""Vulkan calls, structs and constants used by Mansard (registry version 309).

Written by tools/gen_vulkan.py from vk.xml; do not edit. Importing it loads no library.
"""

import ctypes as C
from collections.abc import Callable
from typing import Any, ClassVar

P = C.POINTER


class Chained(C.Structure):
    """A struct with sType and pNext; sType is filled in, pNext may be set with `chain`."""

    STYPE = 0

    def __init__(self, **members: object) -> None:
        super().__init__(sType=self.STYPE, **members)


def chain(*structs: Any) -> Any:
    """Link structs by pNext in the order given and return the first, which keeps the others alive."""
    for before, after in zip(structs, structs[1:]):
        before.pNext = C.addressof(after)
        before._next = after
    return structs[0]


class Commands:
    """Typed function pointers of one dispatch level, found by ``resolve(name) -> address``.

    Commands of extensions that are not there stay unset; a missing core command raises LookupError.
    """

    OPTIONAL: ClassVar[frozenset[str]]
    PROTOTYPES: ClassVar[dict[str, Any]]

    def __init__(self, resolve: Callable[[str], int | None]) -> None:
        for name, prototype in self.PROTOTYPES.items():
            address = resolve(name)
            if address:
                setattr(self, name, prototype(address))
            elif name not in self.OPTIONAL:
                raise LookupError(f"the Vulkan driver lacks {name}")

    def address(self, name: str) -> int:
        """Where a command lies, for callers in C."""
        return C.cast(getattr(self, name), C.c_void_p).value or 0

VK_API_VERSION_1_3 = 4206592
VK_DRIVER_ID_MESA_LLVMPIPE = 13
VK_DRIVER_ID_NVIDIA_PROPRIETARY = 4
VK_BUFFER_USAGE_TRANSFER_SRC_BIT = 1
VK_BUFFER_USAGE_TRANSFER_DST_BIT = 2
VK_BUFFER_USAGE_STORAGE_BUFFER_BIT = 32
VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT = 131072
VK_SHARING_MODE_EXCLUSIVE = 0
VK_BUFFER_CREATE_SPARSE_BINDING_BIT = 1
VK_SHARING_MODE_CONCURRENT = 1
VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT = 2
VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT = 128
VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT = 4
VK_SHADER_STAGE_COMPUTE_BIT = 32
VK_PIPELINE_BIND_POINT_COMPUTE = 1
VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT = 2
VK_COMMAND_BUFFER_LEVEL_PRIMARY = 0
VK_ACCESS_2_MEMORY_READ_BIT = 32768
VK_ACCESS_2_MEMORY_WRITE_BIT = 65536
VK_ACCESS_2_SHADER_READ_BIT = 32
VK_ACCESS_2_SHADER_WRITE_BIT = 64
VK_ACCESS_2_TRANSFER_READ_BIT = 2048
VK_ACCESS_2_TRANSFER_WRITE_BIT = 4096
VK_ACCESS_2_HOST_READ_BIT = 8192
VK_ACCESS_2_HOST_WRITE_BIT = 16384
VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT = 2048
VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT = 4096
VK_PIPELINE_STAGE_2_HOST_BIT = 16384
VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT = 65536
VK_QUERY_TYPE_TIMESTAMP = 2
VK_QUERY_RESULT_64_BIT = 1
VK_QUERY_RESULT_WAIT_BIT = 2
VK_SEMAPHORE_TYPE_TIMELINE = 1
VK_TIME_DOMAIN_DEVICE_EXT = 0
VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT = 1
VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT = 256
VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT = 4096
VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT = 2
VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT = 2
VK_QUEUE_FAMILY_IGNORED = 4294967295
VK_WHOLE_SIZE = 18446744073709551615
VK_DESCRIPTOR_TYPE_STORAGE_BUFFER = 7
VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR = 1
VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT = 1
VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT = 2
VK_OBJECT_TYPE_BUFFER = 9
VK_OBJECT_TYPE_PIPELINE = 19
VK_OBJECT_TYPE_COMMAND_BUFFER = 6
VK_OBJECT_TYPE_QUEUE = 4
VK_SUCCESS = 0
VK_NOT_READY = 1
VK_TIMEOUT = 2
VK_EVENT_SET = 3
VK_EVENT_RESET = 4
VK_INCOMPLETE = 5
VK_ERROR_OUT_OF_HOST_MEMORY = -1
VK_ERROR_OUT_OF_DEVICE_MEMORY = -2
VK_ERROR_INITIALIZATION_FAILED = -3
VK_ERROR_DEVICE_LOST = -4
VK_ERROR_MEMORY_MAP_FAILED = -5
VK_ERROR_LAYER_NOT_PRESENT = -6
VK_ERROR_EXTENSION_NOT_PRESENT = -7
VK_ERROR_FEATURE_NOT_PRESENT = -8
VK_ERROR_INCOMPATIBLE_DRIVER = -9
VK_ERROR_TOO_MANY_OBJECTS = -10
VK_ERROR_FORMAT_NOT_SUPPORTED = -11
VK_ERROR_FRAGMENTED_POOL = -12
VK_ERROR_UNKNOWN = -13
VK_ERROR_OUT_OF_POOL_MEMORY = -1000069000
VK_ERROR_INVALID_EXTERNAL_HANDLE = -1000072003
VK_ERROR_FRAGMENTATION = -1000161000
VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS = -1000257000
VK_PIPELINE_COMPILE_REQUIRED = 1000297000
VK_ERROR_NOT_PERMITTED = -1000174001
VK_ERROR_VALIDATION_FAILED = -1000011001
VK_ERROR_INVALID_PIPELINE_CACHE_DATA = -1000298000
VK_ERROR_NO_PIPELINE_MATCH = -1000298001
VK_ERROR_SURFACE_LOST_KHR = -1000000000
VK_ERROR_NATIVE_WINDOW_IN_USE_KHR = -1000000001
VK_SUBOPTIMAL_KHR = 1000001003
VK_ERROR_OUT_OF_DATE_KHR = -1000001004
VK_ERROR_INCOMPATIBLE_DISPLAY_KHR = -1000003001
VK_ERROR_VALIDATION_FAILED_EXT = -1000011001
VK_ERROR_INVALID_SHADER_NV = -1000012000
VK_ERROR_IMAGE_USAGE_NOT_SUPPORTED_KHR = -1000023000
VK_ERROR_VIDEO_PICTURE_LAYOUT_NOT_SUPPORTED_KHR = -1000023001
VK_ERROR_VIDEO_PROFILE_OPERATION_NOT_SUPPORTED_KHR = -1000023002
VK_ERROR_VIDEO_PROFILE_FORMAT_NOT_SUPPORTED_KHR = -1000023003
VK_ERROR_VIDEO_PROFILE_CODEC_NOT_SUPPORTED_KHR = -1000023004
VK_ERROR_VIDEO_STD_VERSION_NOT_SUPPORTED_KHR = -1000023005
VK_ERROR_INVALID_DRM_FORMAT_MODIFIER_PLANE_LAYOUT_EXT = -1000158000
VK_ERROR_FULL_SCREEN_EXCLUSIVE_MODE_LOST_EXT = -1000255000
VK_THREAD_IDLE_KHR = 1000268000
VK_THREAD_DONE_KHR = 1000268001
VK_OPERATION_DEFERRED_KHR = 1000268002
VK_OPERATION_NOT_DEFERRED_KHR = 1000268003
VK_ERROR_INVALID_VIDEO_STD_PARAMETERS_KHR = -1000299000
VK_ERROR_COMPRESSION_EXHAUSTED_EXT = -1000338000
VK_INCOMPATIBLE_SHADER_BINARY_EXT = 1000482000
VK_PIPELINE_BINARY_MISSING_KHR = 1000483000
VK_ERROR_NOT_ENOUGH_SPACE_KHR = -1000483000
VK_PHYSICAL_DEVICE_TYPE_OTHER = 0
VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU = 1
VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU = 2
VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU = 3
VK_PHYSICAL_DEVICE_TYPE_CPU = 4
VK_QUEUE_GRAPHICS_BIT = 1
VK_QUEUE_COMPUTE_BIT = 2
VK_QUEUE_TRANSFER_BIT = 4
VK_QUEUE_SPARSE_BINDING_BIT = 8
VK_QUEUE_PROTECTED_BIT = 16
VK_QUEUE_VIDEO_DECODE_BIT_KHR = 32
VK_QUEUE_VIDEO_ENCODE_BIT_KHR = 64
VK_QUEUE_OPTICAL_FLOW_BIT_NV = 256
VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT = 1
VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT = 2
VK_MEMORY_PROPERTY_HOST_COHERENT_BIT = 4
VK_MEMORY_PROPERTY_HOST_CACHED_BIT = 8
VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT = 16
VK_MEMORY_PROPERTY_PROTECTED_BIT = 32
VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD = 64
VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD = 128
VK_MEMORY_PROPERTY_RDMA_CAPABLE_BIT_NV = 256
VK_MEMORY_HEAP_DEVICE_LOCAL_BIT = 1
VK_MEMORY_HEAP_MULTI_INSTANCE_BIT = 2
VK_MEMORY_HEAP_SEU_SAFE_BIT = 4
VK_SUBGROUP_FEATURE_BASIC_BIT = 1
VK_SUBGROUP_FEATURE_VOTE_BIT = 2
VK_SUBGROUP_FEATURE_ARITHMETIC_BIT = 4
VK_SUBGROUP_FEATURE_BALLOT_BIT = 8
VK_SUBGROUP_FEATURE_SHUFFLE_BIT = 16
VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT = 32
VK_SUBGROUP_FEATURE_CLUSTERED_BIT = 64
VK_SUBGROUP_FEATURE_QUAD_BIT = 128
VK_SUBGROUP_FEATURE_ROTATE_BIT = 512
VK_SUBGROUP_FEATURE_ROTATE_CLUSTERED_BIT = 1024
VK_SUBGROUP_FEATURE_PARTITIONED_BIT_NV = 256
VK_SCOPE_DEVICE_KHR = 1
VK_SCOPE_WORKGROUP_KHR = 2
VK_SCOPE_SUBGROUP_KHR = 3
VK_SCOPE_QUEUE_FAMILY_KHR = 5
VK_COMPONENT_TYPE_FLOAT16_KHR = 0
VK_COMPONENT_TYPE_FLOAT32_KHR = 1
VK_COMPONENT_TYPE_FLOAT64_KHR = 2
VK_COMPONENT_TYPE_SINT8_KHR = 3
VK_COMPONENT_TYPE_SINT16_KHR = 4
VK_COMPONENT_TYPE_SINT32_KHR = 5
VK_COMPONENT_TYPE_SINT64_KHR = 6
VK_COMPONENT_TYPE_UINT8_KHR = 7
VK_COMPONENT_TYPE_UINT16_KHR = 8
VK_COMPONENT_TYPE_UINT32_KHR = 9
VK_COMPONENT_TYPE_UINT64_KHR = 10
VK_COMPONENT_TYPE_SINT8_PACKED_NV = 1000491000
VK_COMPONENT_TYPE_UINT8_PACKED_NV = 1000491001
VK_COMPONENT_TYPE_FLOAT_E4M3_NV = 1000491002
VK_COMPONENT_TYPE_FLOAT_E5M2_NV = 1000491003

RESULT_NAMES = {0: 'VK_SUCCESS', 1: 'VK_NOT_READY', 2: 'VK_TIMEOUT', 3: 'VK_EVENT_SET', 4: 'VK_EVENT_RESET', 5: 'VK_INCOMPLETE', -1: 'VK_ERROR_OUT_OF_HOST_MEMORY', -2: 'VK_ERROR_OUT_OF_DEVICE_MEMORY', -3: 'VK_ERROR_INITIALIZATION_FAILED', -4: 'VK_ERROR_DEVICE_LOST', -5: 'VK_ERROR_MEMORY_MAP_FAILED', -6: 'VK_ERROR_LAYER_NOT_PRESENT', -7: 'VK_ERROR_EXTENSION_NOT_PRESENT', -8: 'VK_ERROR_FEATURE_NOT_PRESENT', -9: 'VK_ERROR_INCOMPATIBLE_DRIVER', -10: 'VK_ERROR_TOO_MANY_OBJECTS', -11: 'VK_ERROR_FORMAT_NOT_SUPPORTED', -12: 'VK_ERROR_FRAGMENTED_POOL', -13: 'VK_ERROR_UNKNOWN', -1000069000: 'VK_ERROR_OUT_OF_POOL_MEMORY', -1000072003: 'VK_ERROR_INVALID_EXTERNAL_HANDLE', -1000161000: 'VK_ERROR_FRAGMENTATION', -1000257000: 'VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS', 1000297000: 'VK_PIPELINE_COMPILE_REQUIRED', -1000174001: 'VK_ERROR_NOT_PERMITTED', -1000011001: 'VK_ERROR_VALIDATION_FAILED', -1000298000: 'VK_ERROR_INVALID_PIPELINE_CACHE_DATA', -1000298001: 'VK_ERROR_NO_PIPELINE_MATCH', -1000000000: 'VK_ERROR_SURFACE_LOST_KHR', -1000000001: 'VK_ERROR_NATIVE_WINDOW_IN_USE_KHR', 1000001003: 'VK_SUBOPTIMAL_KHR', -1000001004: 'VK_ERROR_OUT_OF_DATE_KHR', -1000003001: 'VK_ERROR_INCOMPATIBLE_DISPLAY_KHR', -1000011001: 'VK_ERROR_VALIDATION_FAILED_EXT', -1000012000: 'VK_ERROR_INVALID_SHADER_NV', -1000023000: 'VK_ERROR_IMAGE_USAGE_NOT_SUPPORTED_KHR', -1000023001: 'VK_ERROR_VIDEO_PICTURE_LAYOUT_NOT_SUPPORTED_KHR', -1000023002: 'VK_ERROR_VIDEO_PROFILE_OPERATION_NOT_SUPPORTED_KHR', -1000023003: 'VK_ERROR_VIDEO_PROFILE_FORMAT_NOT_SUPPORTED_KHR', -1000023004: 'VK_ERROR_VIDEO_PROFILE_CODEC_NOT_SUPPORTED_KHR', -1000023005: 'VK_ERROR_VIDEO_STD_VERSION_NOT_SUPPORTED_KHR', -1000158000: 'VK_ERROR_INVALID_DRM_FORMAT_MODIFIER_PLANE_LAYOUT_EXT', -1000255000: 'VK_ERROR_FULL_SCREEN_EXCLUSIVE_MODE_LOST_EXT', 1000268000: 'VK_THREAD_IDLE_KHR', 1000268001: 'VK_THREAD_DONE_KHR', 1000268002: 'VK_OPERATION_DEFERRED_KHR', 1000268003: 'VK_OPERATION_NOT_DEFERRED_KHR', -1000299000: 'VK_ERROR_INVALID_VIDEO_STD_PARAMETERS_KHR', -1000338000: 'VK_ERROR_COMPRESSION_EXHAUSTED_EXT', 1000482000: 'VK_INCOMPATIBLE_SHADER_BINARY_EXT', 1000483000: 'VK_PIPELINE_BINARY_MISSING_KHR', -1000483000: 'VK_ERROR_NOT_ENOUGH_SPACE_KHR'}


class VkApplicationInfo(Chained):
    STYPE = 0
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('pApplicationName', C.c_char_p), ('applicationVersion', C.c_uint32), ('pEngineName', C.c_char_p), ('engineVersion', C.c_uint32), ('apiVersion', C.c_uint32)]


class VkInstanceCreateInfo(Chained):
    STYPE = 1
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('pApplicationInfo', P(VkApplicationInfo)), ('enabledLayerCount', C.c_uint32), ('ppEnabledLayerNames', P(C.c_char_p)), ('enabledExtensionCount', C.c_uint32), ('ppEnabledExtensionNames', P(C.c_char_p))]


class VkExtensionProperties(C.Structure):
    _fields_ = [('extensionName', C.c_char * 256), ('specVersion', C.c_uint32)]


class VkLayerProperties(C.Structure):
    _fields_ = [('layerName', C.c_char * 256), ('specVersion', C.c_uint32), ('implementationVersion', C.c_uint32), ('description', C.c_char * 256)]


class VkPhysicalDeviceLimits(C.Structure):
    _fields_ = [('maxImageDimension1D', C.c_uint32), ('maxImageDimension2D', C.c_uint32), ('maxImageDimension3D', C.c_uint32), ('maxImageDimensionCube', C.c_uint32), ('maxImageArrayLayers', C.c_uint32), ('maxTexelBufferElements', C.c_uint32), ('maxUniformBufferRange', C.c_uint32), ('maxStorageBufferRange', C.c_uint32), ('maxPushConstantsSize', C.c_uint32), ('maxMemoryAllocationCount', C.c_uint32), ('maxSamplerAllocationCount', C.c_uint32), ('bufferImageGranularity', C.c_uint64), ('sparseAddressSpaceSize', C.c_uint64), ('maxBoundDescriptorSets', C.c_uint32), ('maxPerStageDescriptorSamplers', C.c_uint32), ('maxPerStageDescriptorUniformBuffers', C.c_uint32), ('maxPerStageDescriptorStorageBuffers', C.c_uint32), ('maxPerStageDescriptorSampledImages', C.c_uint32), ('maxPerStageDescriptorStorageImages', C.c_uint32), ('maxPerStageDescriptorInputAttachments', C.c_uint32), ('maxPerStageResources', C.c_uint32), ('maxDescriptorSetSamplers', C.c_uint32), ('maxDescriptorSetUniformBuffers', C.c_uint32), ('maxDescriptorSetUniformBuffersDynamic', C.c_uint32), ('maxDescriptorSetStorageBuffers', C.c_uint32), ('maxDescriptorSetStorageBuffersDynamic', C.c_uint32), ('maxDescriptorSetSampledImages', C.c_uint32), ('maxDescriptorSetStorageImages', C.c_uint32), ('maxDescriptorSetInputAttachments', C.c_uint32), ('maxVertexInputAttributes', C.c_uint32), ('maxVertexInputBindings', C.c_uint32), ('maxVertexInputAttributeOffset', C.c_uint32), ('maxVertexInputBindingStride', C.c_uint32), ('maxVertexOutputComponents', C.c_uint32), ('maxTessellationGenerationLevel', C.c_uint32), ('maxTessellationPatchSize', C.c_uint32), ('maxTessellationControlPerVertexInputComponents', C.c_uint32), ('maxTessellationControlPerVertexOutputComponents', C.c_uint32), ('maxTessellationControlPerPatchOutputComponents', C.c_uint32), ('maxTessellationControlTotalOutputComponents', C.c_uint32), ('maxTessellationEvaluationInputComponents', C.c_uint32), ('maxTessellationEvaluationOutputComponents', C.c_uint32), ('maxGeometryShaderInvocations', C.c_uint32), ('maxGeometryInputComponents', C.c_uint32), ('maxGeometryOutputComponents', C.c_uint32), ('maxGeometryOutputVertices', C.c_uint32), ('maxGeometryTotalOutputComponents', C.c_uint32), ('maxFragmentInputComponents', C.c_uint32), ('maxFragmentOutputAttachments', C.c_uint32), ('maxFragmentDualSrcAttachments', C.c_uint32), ('maxFragmentCombinedOutputResources', C.c_uint32), ('maxComputeSharedMemorySize', C.c_uint32), ('maxComputeWorkGroupCount', C.c_uint32 * 3), ('maxComputeWorkGroupInvocations', C.c_uint32), ('maxComputeWorkGroupSize', C.c_uint32 * 3), ('subPixelPrecisionBits', C.c_uint32), ('subTexelPrecisionBits', C.c_uint32), ('mipmapPrecisionBits', C.c_uint32), ('maxDrawIndexedIndexValue', C.c_uint32), ('maxDrawIndirectCount', C.c_uint32), ('maxSamplerLodBias', C.c_float), ('maxSamplerAnisotropy', C.c_float), ('maxViewports', C.c_uint32), ('maxViewportDimensions', C.c_uint32 * 2), ('viewportBoundsRange', C.c_float * 2), ('viewportSubPixelBits', C.c_uint32), ('minMemoryMapAlignment', C.c_size_t), ('minTexelBufferOffsetAlignment', C.c_uint64), ('minUniformBufferOffsetAlignment', C.c_uint64), ('minStorageBufferOffsetAlignment', C.c_uint64), ('minTexelOffset', C.c_int32), ('maxTexelOffset', C.c_uint32), ('minTexelGatherOffset', C.c_int32), ('maxTexelGatherOffset', C.c_uint32), ('minInterpolationOffset', C.c_float), ('maxInterpolationOffset', C.c_float), ('subPixelInterpolationOffsetBits', C.c_uint32), ('maxFramebufferWidth', C.c_uint32), ('maxFramebufferHeight', C.c_uint32), ('maxFramebufferLayers', C.c_uint32), ('framebufferColorSampleCounts', C.c_uint32), ('framebufferDepthSampleCounts', C.c_uint32), ('framebufferStencilSampleCounts', C.c_uint32), ('framebufferNoAttachmentsSampleCounts', C.c_uint32), ('maxColorAttachments', C.c_uint32), ('sampledImageColorSampleCounts', C.c_uint32), ('sampledImageIntegerSampleCounts', C.c_uint32), ('sampledImageDepthSampleCounts', C.c_uint32), ('sampledImageStencilSampleCounts', C.c_uint32), ('storageImageSampleCounts', C.c_uint32), ('maxSampleMaskWords', C.c_uint32), ('timestampComputeAndGraphics', C.c_uint32), ('timestampPeriod', C.c_float), ('maxClipDistances', C.c_uint32), ('maxCullDistances', C.c_uint32), ('maxCombinedClipAndCullDistances', C.c_uint32), ('discreteQueuePriorities', C.c_uint32), ('pointSizeRange', C.c_float * 2), ('lineWidthRange', C.c_float * 2), ('pointSizeGranularity', C.c_float), ('lineWidthGranularity', C.c_float), ('strictLines', C.c_uint32), ('standardSampleLocations', C.c_uint32), ('optimalBufferCopyOffsetAlignment', C.c_uint64), ('optimalBufferCopyRowPitchAlignment', C.c_uint64), ('nonCoherentAtomSize', C.c_uint64)]


class VkPhysicalDeviceSparseProperties(C.Structure):
    _fields_ = [('residencyStandard2DBlockShape', C.c_uint32), ('residencyStandard2DMultisampleBlockShape', C.c_uint32), ('residencyStandard3DBlockShape', C.c_uint32), ('residencyAlignedMipSize', C.c_uint32), ('residencyNonResidentStrict', C.c_uint32)]


class VkPhysicalDeviceProperties(C.Structure):
    _fields_ = [('apiVersion', C.c_uint32), ('driverVersion', C.c_uint32), ('vendorID', C.c_uint32), ('deviceID', C.c_uint32), ('deviceType', C.c_int32), ('deviceName', C.c_char * 256), ('pipelineCacheUUID', C.c_uint8 * 16), ('limits', VkPhysicalDeviceLimits), ('sparseProperties', VkPhysicalDeviceSparseProperties)]


class VkPhysicalDeviceProperties2(Chained):
    STYPE = 1000059001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('properties', VkPhysicalDeviceProperties)]


class VkPhysicalDeviceVulkan11Properties(Chained):
    STYPE = 50
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('deviceUUID', C.c_uint8 * 16), ('driverUUID', C.c_uint8 * 16), ('deviceLUID', C.c_uint8 * 8), ('deviceNodeMask', C.c_uint32), ('deviceLUIDValid', C.c_uint32), ('subgroupSize', C.c_uint32), ('subgroupSupportedStages', C.c_uint32), ('subgroupSupportedOperations', C.c_uint32), ('subgroupQuadOperationsInAllStages', C.c_uint32), ('pointClippingBehavior', C.c_int32), ('maxMultiviewViewCount', C.c_uint32), ('maxMultiviewInstanceIndex', C.c_uint32), ('protectedNoFault', C.c_uint32), ('maxPerSetDescriptors', C.c_uint32), ('maxMemoryAllocationSize', C.c_uint64)]


class VkConformanceVersion(C.Structure):
    _fields_ = [('major', C.c_uint8), ('minor', C.c_uint8), ('subminor', C.c_uint8), ('patch', C.c_uint8)]


class VkPhysicalDeviceVulkan12Properties(Chained):
    STYPE = 52
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('driverID', C.c_int32), ('driverName', C.c_char * 256), ('driverInfo', C.c_char * 256), ('conformanceVersion', VkConformanceVersion), ('denormBehaviorIndependence', C.c_int32), ('roundingModeIndependence', C.c_int32), ('shaderSignedZeroInfNanPreserveFloat16', C.c_uint32), ('shaderSignedZeroInfNanPreserveFloat32', C.c_uint32), ('shaderSignedZeroInfNanPreserveFloat64', C.c_uint32), ('shaderDenormPreserveFloat16', C.c_uint32), ('shaderDenormPreserveFloat32', C.c_uint32), ('shaderDenormPreserveFloat64', C.c_uint32), ('shaderDenormFlushToZeroFloat16', C.c_uint32), ('shaderDenormFlushToZeroFloat32', C.c_uint32), ('shaderDenormFlushToZeroFloat64', C.c_uint32), ('shaderRoundingModeRTEFloat16', C.c_uint32), ('shaderRoundingModeRTEFloat32', C.c_uint32), ('shaderRoundingModeRTEFloat64', C.c_uint32), ('shaderRoundingModeRTZFloat16', C.c_uint32), ('shaderRoundingModeRTZFloat32', C.c_uint32), ('shaderRoundingModeRTZFloat64', C.c_uint32), ('maxUpdateAfterBindDescriptorsInAllPools', C.c_uint32), ('shaderUniformBufferArrayNonUniformIndexingNative', C.c_uint32), ('shaderSampledImageArrayNonUniformIndexingNative', C.c_uint32), ('shaderStorageBufferArrayNonUniformIndexingNative', C.c_uint32), ('shaderStorageImageArrayNonUniformIndexingNative', C.c_uint32), ('shaderInputAttachmentArrayNonUniformIndexingNative', C.c_uint32), ('robustBufferAccessUpdateAfterBind', C.c_uint32), ('quadDivergentImplicitLod', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindSamplers', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindUniformBuffers', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindStorageBuffers', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindSampledImages', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindStorageImages', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindInputAttachments', C.c_uint32), ('maxPerStageUpdateAfterBindResources', C.c_uint32), ('maxDescriptorSetUpdateAfterBindSamplers', C.c_uint32), ('maxDescriptorSetUpdateAfterBindUniformBuffers', C.c_uint32), ('maxDescriptorSetUpdateAfterBindUniformBuffersDynamic', C.c_uint32), ('maxDescriptorSetUpdateAfterBindStorageBuffers', C.c_uint32), ('maxDescriptorSetUpdateAfterBindStorageBuffersDynamic', C.c_uint32), ('maxDescriptorSetUpdateAfterBindSampledImages', C.c_uint32), ('maxDescriptorSetUpdateAfterBindStorageImages', C.c_uint32), ('maxDescriptorSetUpdateAfterBindInputAttachments', C.c_uint32), ('supportedDepthResolveModes', C.c_uint32), ('supportedStencilResolveModes', C.c_uint32), ('independentResolveNone', C.c_uint32), ('independentResolve', C.c_uint32), ('filterMinmaxSingleComponentFormats', C.c_uint32), ('filterMinmaxImageComponentMapping', C.c_uint32), ('maxTimelineSemaphoreValueDifference', C.c_uint64), ('framebufferIntegerColorSampleCounts', C.c_uint32)]


class VkPhysicalDeviceVulkan13Properties(Chained):
    STYPE = 54
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('minSubgroupSize', C.c_uint32), ('maxSubgroupSize', C.c_uint32), ('maxComputeWorkgroupSubgroups', C.c_uint32), ('requiredSubgroupSizeStages', C.c_uint32), ('maxInlineUniformBlockSize', C.c_uint32), ('maxPerStageDescriptorInlineUniformBlocks', C.c_uint32), ('maxPerStageDescriptorUpdateAfterBindInlineUniformBlocks', C.c_uint32), ('maxDescriptorSetInlineUniformBlocks', C.c_uint32), ('maxDescriptorSetUpdateAfterBindInlineUniformBlocks', C.c_uint32), ('maxInlineUniformTotalSize', C.c_uint32), ('integerDotProduct8BitUnsignedAccelerated', C.c_uint32), ('integerDotProduct8BitSignedAccelerated', C.c_uint32), ('integerDotProduct8BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProduct4x8BitPackedUnsignedAccelerated', C.c_uint32), ('integerDotProduct4x8BitPackedSignedAccelerated', C.c_uint32), ('integerDotProduct4x8BitPackedMixedSignednessAccelerated', C.c_uint32), ('integerDotProduct16BitUnsignedAccelerated', C.c_uint32), ('integerDotProduct16BitSignedAccelerated', C.c_uint32), ('integerDotProduct16BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProduct32BitUnsignedAccelerated', C.c_uint32), ('integerDotProduct32BitSignedAccelerated', C.c_uint32), ('integerDotProduct32BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProduct64BitUnsignedAccelerated', C.c_uint32), ('integerDotProduct64BitSignedAccelerated', C.c_uint32), ('integerDotProduct64BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating8BitUnsignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating8BitSignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating8BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating4x8BitPackedUnsignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating4x8BitPackedSignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating4x8BitPackedMixedSignednessAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating16BitUnsignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating16BitSignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating16BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating32BitUnsignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating32BitSignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating32BitMixedSignednessAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating64BitUnsignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating64BitSignedAccelerated', C.c_uint32), ('integerDotProductAccumulatingSaturating64BitMixedSignednessAccelerated', C.c_uint32), ('storageTexelBufferOffsetAlignmentBytes', C.c_uint64), ('storageTexelBufferOffsetSingleTexelAlignment', C.c_uint32), ('uniformTexelBufferOffsetAlignmentBytes', C.c_uint64), ('uniformTexelBufferOffsetSingleTexelAlignment', C.c_uint32), ('maxBufferSize', C.c_uint64)]


class VkPhysicalDeviceExternalMemoryHostPropertiesEXT(Chained):
    STYPE = 1000178002
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('minImportedHostPointerAlignment', C.c_uint64)]


class VkPhysicalDeviceFeatures(C.Structure):
    _fields_ = [('robustBufferAccess', C.c_uint32), ('fullDrawIndexUint32', C.c_uint32), ('imageCubeArray', C.c_uint32), ('independentBlend', C.c_uint32), ('geometryShader', C.c_uint32), ('tessellationShader', C.c_uint32), ('sampleRateShading', C.c_uint32), ('dualSrcBlend', C.c_uint32), ('logicOp', C.c_uint32), ('multiDrawIndirect', C.c_uint32), ('drawIndirectFirstInstance', C.c_uint32), ('depthClamp', C.c_uint32), ('depthBiasClamp', C.c_uint32), ('fillModeNonSolid', C.c_uint32), ('depthBounds', C.c_uint32), ('wideLines', C.c_uint32), ('largePoints', C.c_uint32), ('alphaToOne', C.c_uint32), ('multiViewport', C.c_uint32), ('samplerAnisotropy', C.c_uint32), ('textureCompressionETC2', C.c_uint32), ('textureCompressionASTC_LDR', C.c_uint32), ('textureCompressionBC', C.c_uint32), ('occlusionQueryPrecise', C.c_uint32), ('pipelineStatisticsQuery', C.c_uint32), ('vertexPipelineStoresAndAtomics', C.c_uint32), ('fragmentStoresAndAtomics', C.c_uint32), ('shaderTessellationAndGeometryPointSize', C.c_uint32), ('shaderImageGatherExtended', C.c_uint32), ('shaderStorageImageExtendedFormats', C.c_uint32), ('shaderStorageImageMultisample', C.c_uint32), ('shaderStorageImageReadWithoutFormat', C.c_uint32), ('shaderStorageImageWriteWithoutFormat', C.c_uint32), ('shaderUniformBufferArrayDynamicIndexing', C.c_uint32), ('shaderSampledImageArrayDynamicIndexing', C.c_uint32), ('shaderStorageBufferArrayDynamicIndexing', C.c_uint32), ('shaderStorageImageArrayDynamicIndexing', C.c_uint32), ('shaderClipDistance', C.c_uint32), ('shaderCullDistance', C.c_uint32), ('shaderFloat64', C.c_uint32), ('shaderInt64', C.c_uint32), ('shaderInt16', C.c_uint32), ('shaderResourceResidency', C.c_uint32), ('shaderResourceMinLod', C.c_uint32), ('sparseBinding', C.c_uint32), ('sparseResidencyBuffer', C.c_uint32), ('sparseResidencyImage2D', C.c_uint32), ('sparseResidencyImage3D', C.c_uint32), ('sparseResidency2Samples', C.c_uint32), ('sparseResidency4Samples', C.c_uint32), ('sparseResidency8Samples', C.c_uint32), ('sparseResidency16Samples', C.c_uint32), ('sparseResidencyAliased', C.c_uint32), ('variableMultisampleRate', C.c_uint32), ('inheritedQueries', C.c_uint32)]


class VkPhysicalDeviceFeatures2(Chained):
    STYPE = 1000059000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('features', VkPhysicalDeviceFeatures)]


class VkPhysicalDeviceVulkan11Features(Chained):
    STYPE = 49
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('storageBuffer16BitAccess', C.c_uint32), ('uniformAndStorageBuffer16BitAccess', C.c_uint32), ('storagePushConstant16', C.c_uint32), ('storageInputOutput16', C.c_uint32), ('multiview', C.c_uint32), ('multiviewGeometryShader', C.c_uint32), ('multiviewTessellationShader', C.c_uint32), ('variablePointersStorageBuffer', C.c_uint32), ('variablePointers', C.c_uint32), ('protectedMemory', C.c_uint32), ('samplerYcbcrConversion', C.c_uint32), ('shaderDrawParameters', C.c_uint32)]


class VkPhysicalDeviceVulkan12Features(Chained):
    STYPE = 51
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('samplerMirrorClampToEdge', C.c_uint32), ('drawIndirectCount', C.c_uint32), ('storageBuffer8BitAccess', C.c_uint32), ('uniformAndStorageBuffer8BitAccess', C.c_uint32), ('storagePushConstant8', C.c_uint32), ('shaderBufferInt64Atomics', C.c_uint32), ('shaderSharedInt64Atomics', C.c_uint32), ('shaderFloat16', C.c_uint32), ('shaderInt8', C.c_uint32), ('descriptorIndexing', C.c_uint32), ('shaderInputAttachmentArrayDynamicIndexing', C.c_uint32), ('shaderUniformTexelBufferArrayDynamicIndexing', C.c_uint32), ('shaderStorageTexelBufferArrayDynamicIndexing', C.c_uint32), ('shaderUniformBufferArrayNonUniformIndexing', C.c_uint32), ('shaderSampledImageArrayNonUniformIndexing', C.c_uint32), ('shaderStorageBufferArrayNonUniformIndexing', C.c_uint32), ('shaderStorageImageArrayNonUniformIndexing', C.c_uint32), ('shaderInputAttachmentArrayNonUniformIndexing', C.c_uint32), ('shaderUniformTexelBufferArrayNonUniformIndexing', C.c_uint32), ('shaderStorageTexelBufferArrayNonUniformIndexing', C.c_uint32), ('descriptorBindingUniformBufferUpdateAfterBind', C.c_uint32), ('descriptorBindingSampledImageUpdateAfterBind', C.c_uint32), ('descriptorBindingStorageImageUpdateAfterBind', C.c_uint32), ('descriptorBindingStorageBufferUpdateAfterBind', C.c_uint32), ('descriptorBindingUniformTexelBufferUpdateAfterBind', C.c_uint32), ('descriptorBindingStorageTexelBufferUpdateAfterBind', C.c_uint32), ('descriptorBindingUpdateUnusedWhilePending', C.c_uint32), ('descriptorBindingPartiallyBound', C.c_uint32), ('descriptorBindingVariableDescriptorCount', C.c_uint32), ('runtimeDescriptorArray', C.c_uint32), ('samplerFilterMinmax', C.c_uint32), ('scalarBlockLayout', C.c_uint32), ('imagelessFramebuffer', C.c_uint32), ('uniformBufferStandardLayout', C.c_uint32), ('shaderSubgroupExtendedTypes', C.c_uint32), ('separateDepthStencilLayouts', C.c_uint32), ('hostQueryReset', C.c_uint32), ('timelineSemaphore', C.c_uint32), ('bufferDeviceAddress', C.c_uint32), ('bufferDeviceAddressCaptureReplay', C.c_uint32), ('bufferDeviceAddressMultiDevice', C.c_uint32), ('vulkanMemoryModel', C.c_uint32), ('vulkanMemoryModelDeviceScope', C.c_uint32), ('vulkanMemoryModelAvailabilityVisibilityChains', C.c_uint32), ('shaderOutputViewportIndex', C.c_uint32), ('shaderOutputLayer', C.c_uint32), ('subgroupBroadcastDynamicId', C.c_uint32)]


class VkPhysicalDeviceVulkan13Features(Chained):
    STYPE = 53
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('robustImageAccess', C.c_uint32), ('inlineUniformBlock', C.c_uint32), ('descriptorBindingInlineUniformBlockUpdateAfterBind', C.c_uint32), ('pipelineCreationCacheControl', C.c_uint32), ('privateData', C.c_uint32), ('shaderDemoteToHelperInvocation', C.c_uint32), ('shaderTerminateInvocation', C.c_uint32), ('subgroupSizeControl', C.c_uint32), ('computeFullSubgroups', C.c_uint32), ('synchronization2', C.c_uint32), ('textureCompressionASTC_HDR', C.c_uint32), ('shaderZeroInitializeWorkgroupMemory', C.c_uint32), ('dynamicRendering', C.c_uint32), ('shaderIntegerDotProduct', C.c_uint32), ('maintenance4', C.c_uint32)]


class VkExtent3D(C.Structure):
    _fields_ = [('width', C.c_uint32), ('height', C.c_uint32), ('depth', C.c_uint32)]


class VkQueueFamilyProperties(C.Structure):
    _fields_ = [('queueFlags', C.c_uint32), ('queueCount', C.c_uint32), ('timestampValidBits', C.c_uint32), ('minImageTransferGranularity', VkExtent3D)]


class VkMemoryType(C.Structure):
    _fields_ = [('propertyFlags', C.c_uint32), ('heapIndex', C.c_uint32)]


class VkMemoryHeap(C.Structure):
    _fields_ = [('size', C.c_uint64), ('flags', C.c_uint32)]


class VkPhysicalDeviceMemoryProperties(C.Structure):
    _fields_ = [('memoryTypeCount', C.c_uint32), ('memoryTypes', VkMemoryType * 32), ('memoryHeapCount', C.c_uint32), ('memoryHeaps', VkMemoryHeap * 16)]


class VkPhysicalDeviceMemoryProperties2(Chained):
    STYPE = 1000059006
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('memoryProperties', VkPhysicalDeviceMemoryProperties)]


class VkPhysicalDeviceMemoryBudgetPropertiesEXT(Chained):
    STYPE = 1000237000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('heapBudget', C.c_uint64 * 16), ('heapUsage', C.c_uint64 * 16)]


class VkDeviceQueueCreateInfo(Chained):
    STYPE = 2
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('queueFamilyIndex', C.c_uint32), ('queueCount', C.c_uint32), ('pQueuePriorities', P(C.c_float))]


class VkDeviceCreateInfo(Chained):
    STYPE = 3
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('queueCreateInfoCount', C.c_uint32), ('pQueueCreateInfos', P(VkDeviceQueueCreateInfo)), ('enabledLayerCount', C.c_uint32), ('ppEnabledLayerNames', P(C.c_char_p)), ('enabledExtensionCount', C.c_uint32), ('ppEnabledExtensionNames', P(C.c_char_p)), ('pEnabledFeatures', P(VkPhysicalDeviceFeatures))]


class VkSparseMemoryBind(C.Structure):
    _fields_ = [('resourceOffset', C.c_uint64), ('size', C.c_uint64), ('memory', C.c_uint64), ('memoryOffset', C.c_uint64), ('flags', C.c_uint32)]


class VkSparseBufferMemoryBindInfo(C.Structure):
    _fields_ = [('buffer', C.c_uint64), ('bindCount', C.c_uint32), ('pBinds', P(VkSparseMemoryBind))]


class VkBindSparseInfo(Chained):
    STYPE = 7
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('waitSemaphoreCount', C.c_uint32), ('pWaitSemaphores', P(C.c_uint64)), ('bufferBindCount', C.c_uint32), ('pBufferBinds', P(VkSparseBufferMemoryBindInfo)), ('imageOpaqueBindCount', C.c_uint32), ('pImageOpaqueBinds', C.c_void_p), ('imageBindCount', C.c_uint32), ('pImageBinds', C.c_void_p), ('signalSemaphoreCount', C.c_uint32), ('pSignalSemaphores', P(C.c_uint64))]


class VkBufferCreateInfo(Chained):
    STYPE = 12
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('size', C.c_uint64), ('usage', C.c_uint32), ('sharingMode', C.c_int32), ('queueFamilyIndexCount', C.c_uint32), ('pQueueFamilyIndices', P(C.c_uint32))]


class VkMemoryRequirements(C.Structure):
    _fields_ = [('size', C.c_uint64), ('alignment', C.c_uint64), ('memoryTypeBits', C.c_uint32)]


class VkMemoryAllocateInfo(Chained):
    STYPE = 5
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('allocationSize', C.c_uint64), ('memoryTypeIndex', C.c_uint32)]


class VkMemoryAllocateFlagsInfo(Chained):
    STYPE = 1000060000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('deviceMask', C.c_uint32)]


class VkBufferDeviceAddressInfo(Chained):
    STYPE = 1000244001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('buffer', C.c_uint64)]


class VkImportMemoryHostPointerInfoEXT(Chained):
    STYPE = 1000178000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('handleType', C.c_int32), ('pHostPointer', C.c_void_p)]


class VkMemoryHostPointerPropertiesEXT(Chained):
    STYPE = 1000178001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('memoryTypeBits', C.c_uint32)]


class VkExternalMemoryBufferCreateInfo(Chained):
    STYPE = 1000072000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('handleTypes', C.c_uint32)]


class VkPhysicalDeviceExternalBufferInfo(Chained):
    STYPE = 1000071002
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('usage', C.c_uint32), ('handleType', C.c_int32)]


class VkExternalMemoryProperties(C.Structure):
    _fields_ = [('externalMemoryFeatures', C.c_uint32), ('exportFromImportedHandleTypes', C.c_uint32), ('compatibleHandleTypes', C.c_uint32)]


class VkExternalBufferProperties(Chained):
    STYPE = 1000071003
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('externalMemoryProperties', VkExternalMemoryProperties)]


class VkShaderModuleCreateInfo(Chained):
    STYPE = 16
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('codeSize', C.c_size_t), ('pCode', P(C.c_uint32))]


class VkPipelineCacheCreateInfo(Chained):
    STYPE = 17
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('initialDataSize', C.c_size_t), ('pInitialData', C.c_void_p)]


class VkPipelineShaderStageCreateInfo(Chained):
    STYPE = 18
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('stage', C.c_int32), ('module', C.c_uint64), ('pName', C.c_char_p), ('pSpecializationInfo', C.c_void_p)]


class VkPipelineShaderStageRequiredSubgroupSizeCreateInfo(Chained):
    STYPE = 1000225001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('requiredSubgroupSize', C.c_uint32)]


class VkComputePipelineCreateInfo(Chained):
    STYPE = 29
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('stage', VkPipelineShaderStageCreateInfo), ('layout', C.c_uint64), ('basePipelineHandle', C.c_uint64), ('basePipelineIndex', C.c_int32)]


class VkPushConstantRange(C.Structure):
    _fields_ = [('stageFlags', C.c_uint32), ('offset', C.c_uint32), ('size', C.c_uint32)]


class VkPipelineLayoutCreateInfo(Chained):
    STYPE = 30
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('setLayoutCount', C.c_uint32), ('pSetLayouts', P(C.c_uint64)), ('pushConstantRangeCount', C.c_uint32), ('pPushConstantRanges', P(VkPushConstantRange))]


class VkPipelineCreationFeedback(C.Structure):
    _fields_ = [('flags', C.c_uint32), ('duration', C.c_uint64)]


class VkPipelineCreationFeedbackCreateInfo(Chained):
    STYPE = 1000192000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('pPipelineCreationFeedback', P(VkPipelineCreationFeedback)), ('pipelineStageCreationFeedbackCount', C.c_uint32), ('pPipelineStageCreationFeedbacks', P(VkPipelineCreationFeedback))]


class VkCommandPoolCreateInfo(Chained):
    STYPE = 39
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('queueFamilyIndex', C.c_uint32)]


class VkCommandBufferAllocateInfo(Chained):
    STYPE = 40
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('commandPool', C.c_uint64), ('level', C.c_int32), ('commandBufferCount', C.c_uint32)]


class VkCommandBufferBeginInfo(Chained):
    STYPE = 42
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('pInheritanceInfo', C.c_void_p)]


class VkBufferCopy(C.Structure):
    _fields_ = [('srcOffset', C.c_uint64), ('dstOffset', C.c_uint64), ('size', C.c_uint64)]


class VkMemoryBarrier2(Chained):
    STYPE = 1000314000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('srcStageMask', C.c_uint64), ('srcAccessMask', C.c_uint64), ('dstStageMask', C.c_uint64), ('dstAccessMask', C.c_uint64)]


class VkDependencyInfo(Chained):
    STYPE = 1000314003
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('dependencyFlags', C.c_uint32), ('memoryBarrierCount', C.c_uint32), ('pMemoryBarriers', P(VkMemoryBarrier2)), ('bufferMemoryBarrierCount', C.c_uint32), ('pBufferMemoryBarriers', C.c_void_p), ('imageMemoryBarrierCount', C.c_uint32), ('pImageMemoryBarriers', C.c_void_p)]


class VkQueryPoolCreateInfo(Chained):
    STYPE = 11
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('queryType', C.c_int32), ('queryCount', C.c_uint32), ('pipelineStatistics', C.c_uint32)]


class VkSemaphoreTypeCreateInfo(Chained):
    STYPE = 1000207002
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('semaphoreType', C.c_int32), ('initialValue', C.c_uint64)]


class VkSemaphoreCreateInfo(Chained):
    STYPE = 9
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32)]


class VkSemaphoreWaitInfo(Chained):
    STYPE = 1000207004
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('semaphoreCount', C.c_uint32), ('pSemaphores', P(C.c_uint64)), ('pValues', P(C.c_uint64))]


class VkSemaphoreSubmitInfo(Chained):
    STYPE = 1000314005
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('semaphore', C.c_uint64), ('value', C.c_uint64), ('stageMask', C.c_uint64), ('deviceIndex', C.c_uint32)]


class VkCommandBufferSubmitInfo(Chained):
    STYPE = 1000314006
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('commandBuffer', C.c_void_p), ('deviceMask', C.c_uint32)]


class VkSubmitInfo2(Chained):
    STYPE = 1000314004
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('waitSemaphoreInfoCount', C.c_uint32), ('pWaitSemaphoreInfos', P(VkSemaphoreSubmitInfo)), ('commandBufferInfoCount', C.c_uint32), ('pCommandBufferInfos', P(VkCommandBufferSubmitInfo)), ('signalSemaphoreInfoCount', C.c_uint32), ('pSignalSemaphoreInfos', P(VkSemaphoreSubmitInfo))]


class VkCalibratedTimestampInfoEXT(Chained):
    STYPE = 1000184000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('timeDomain', C.c_int32)]


class VkDebugUtilsLabelEXT(Chained):
    STYPE = 1000128002
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('pLabelName', C.c_char_p), ('color', C.c_float * 4)]


class VkDebugUtilsObjectNameInfoEXT(Chained):
    STYPE = 1000128000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('objectType', C.c_int32), ('objectHandle', C.c_uint64), ('pObjectName', C.c_char_p)]


class VkDebugUtilsMessengerCallbackDataEXT(Chained):
    STYPE = 1000128003
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('pMessageIdName', C.c_char_p), ('messageIdNumber', C.c_int32), ('pMessage', C.c_char_p), ('queueLabelCount', C.c_uint32), ('pQueueLabels', P(VkDebugUtilsLabelEXT)), ('cmdBufLabelCount', C.c_uint32), ('pCmdBufLabels', P(VkDebugUtilsLabelEXT)), ('objectCount', C.c_uint32), ('pObjects', P(VkDebugUtilsObjectNameInfoEXT))]


class VkDebugUtilsMessengerCreateInfoEXT(Chained):
    STYPE = 1000128004
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('messageSeverity', C.c_uint32), ('messageType', C.c_uint32), ('pfnUserCallback', C.c_void_p), ('pUserData', C.c_void_p)]


class VkDescriptorSetLayoutBinding(C.Structure):
    _fields_ = [('binding', C.c_uint32), ('descriptorType', C.c_int32), ('descriptorCount', C.c_uint32), ('stageFlags', C.c_uint32), ('pImmutableSamplers', P(C.c_uint64))]


class VkDescriptorSetLayoutCreateInfo(Chained):
    STYPE = 32
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('bindingCount', C.c_uint32), ('pBindings', P(VkDescriptorSetLayoutBinding))]


class VkDescriptorPoolSize(C.Structure):
    _fields_ = [('type', C.c_int32), ('descriptorCount', C.c_uint32)]


class VkDescriptorPoolCreateInfo(Chained):
    STYPE = 33
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('flags', C.c_uint32), ('maxSets', C.c_uint32), ('poolSizeCount', C.c_uint32), ('pPoolSizes', P(VkDescriptorPoolSize))]


class VkPhysicalDevicePushDescriptorPropertiesKHR(Chained):
    STYPE = 1000080000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('maxPushDescriptors', C.c_uint32)]


class VkPhysicalDeviceCooperativeMatrixFeaturesKHR(Chained):
    STYPE = 1000506000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('cooperativeMatrix', C.c_uint32), ('cooperativeMatrixRobustBufferAccess', C.c_uint32)]


class VkCooperativeMatrixPropertiesKHR(Chained):
    STYPE = 1000506001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('MSize', C.c_uint32), ('NSize', C.c_uint32), ('KSize', C.c_uint32), ('AType', C.c_int32), ('BType', C.c_int32), ('CType', C.c_int32), ('ResultType', C.c_int32), ('saturatingAccumulation', C.c_uint32), ('scope', C.c_int32)]


class VkPhysicalDeviceCooperativeMatrix2FeaturesNV(Chained):
    STYPE = 1000593000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('cooperativeMatrixWorkgroupScope', C.c_uint32), ('cooperativeMatrixFlexibleDimensions', C.c_uint32), ('cooperativeMatrixReductions', C.c_uint32), ('cooperativeMatrixConversions', C.c_uint32), ('cooperativeMatrixPerElementOperations', C.c_uint32), ('cooperativeMatrixTensorAddressing', C.c_uint32), ('cooperativeMatrixBlockLoads', C.c_uint32)]


class VkPhysicalDeviceCooperativeMatrix2PropertiesNV(Chained):
    STYPE = 1000593002
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('cooperativeMatrixWorkgroupScopeMaxWorkgroupSize', C.c_uint32), ('cooperativeMatrixFlexibleDimensionsMaxDimension', C.c_uint32), ('cooperativeMatrixWorkgroupScopeReservedSharedMemory', C.c_uint32)]


class VkPhysicalDeviceShaderSMBuiltinsPropertiesNV(Chained):
    STYPE = 1000154001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('shaderSMCount', C.c_uint32), ('shaderWarpsPerSM', C.c_uint32)]


class VkPhysicalDeviceShaderCorePropertiesAMD(Chained):
    STYPE = 1000185000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('shaderEngineCount', C.c_uint32), ('shaderArraysPerEngineCount', C.c_uint32), ('computeUnitsPerShaderArray', C.c_uint32), ('simdPerComputeUnit', C.c_uint32), ('wavefrontsPerSimd', C.c_uint32), ('wavefrontSize', C.c_uint32), ('sgprsPerSimd', C.c_uint32), ('minSgprAllocation', C.c_uint32), ('maxSgprAllocation', C.c_uint32), ('sgprAllocationGranularity', C.c_uint32), ('vgprsPerSimd', C.c_uint32), ('minVgprAllocation', C.c_uint32), ('maxVgprAllocation', C.c_uint32), ('vgprAllocationGranularity', C.c_uint32)]


class VkPhysicalDeviceShaderCoreProperties2AMD(Chained):
    STYPE = 1000227000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('shaderCoreFeatures', C.c_uint32), ('activeComputeUnitCount', C.c_uint32)]


class VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM(Chained):
    STYPE = 1000497001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('shaderCoreMask', C.c_uint64), ('shaderCoreCount', C.c_uint32), ('shaderWarpsPerCore', C.c_uint32)]


class VkCuModuleCreateInfoNVX(Chained):
    STYPE = 1000029000
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('dataSize', C.c_size_t), ('pData', C.c_void_p)]


class VkCuFunctionCreateInfoNVX(Chained):
    STYPE = 1000029001
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('module', C.c_uint64), ('pName', C.c_char_p)]


class VkCuLaunchInfoNVX(Chained):
    STYPE = 1000029002
    _fields_ = [('sType', C.c_int32), ('pNext', C.c_void_p), ('function', C.c_uint64), ('gridDimX', C.c_uint32), ('gridDimY', C.c_uint32), ('gridDimZ', C.c_uint32), ('blockDimX', C.c_uint32), ('blockDimY', C.c_uint32), ('blockDimZ', C.c_uint32), ('sharedMemBytes', C.c_uint32), ('paramCount', C.c_size_t), ('pParams', P(C.c_void_p)), ('extraCount', C.c_size_t), ('pExtras', P(C.c_void_p))]


class GlobalCommands(Commands):
    vkGetInstanceProcAddr: Callable[..., int]
    vkEnumerateInstanceVersion: Callable[..., int]
    vkEnumerateInstanceExtensionProperties: Callable[..., int]
    vkEnumerateInstanceLayerProperties: Callable[..., int]
    vkCreateInstance: Callable[..., int]
    OPTIONAL = frozenset([])
    PROTOTYPES = {
        'vkGetInstanceProcAddr': C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p),
        'vkEnumerateInstanceVersion': C.CFUNCTYPE(C.c_int32, P(C.c_uint32)),
        'vkEnumerateInstanceExtensionProperties': C.CFUNCTYPE(C.c_int32, C.c_char_p, P(C.c_uint32), P(VkExtensionProperties)),
        'vkEnumerateInstanceLayerProperties': C.CFUNCTYPE(C.c_int32, P(C.c_uint32), P(VkLayerProperties)),
        'vkCreateInstance': C.CFUNCTYPE(C.c_int32, P(VkInstanceCreateInfo), C.c_void_p, P(C.c_void_p)),
    }


class InstanceCommands(Commands):
    vkDestroyInstance: Callable[..., None]
    vkEnumeratePhysicalDevices: Callable[..., int]
    vkGetPhysicalDeviceProperties: Callable[..., None]
    vkGetPhysicalDeviceProperties2: Callable[..., None]
    vkGetPhysicalDeviceFeatures2: Callable[..., None]
    vkGetPhysicalDeviceQueueFamilyProperties: Callable[..., None]
    vkGetPhysicalDeviceMemoryProperties: Callable[..., None]
    vkGetPhysicalDeviceMemoryProperties2: Callable[..., None]
    vkEnumerateDeviceExtensionProperties: Callable[..., int]
    vkCreateDevice: Callable[..., int]
    vkGetDeviceProcAddr: Callable[..., int]
    vkGetPhysicalDeviceExternalBufferProperties: Callable[..., None]
    vkGetPhysicalDeviceCalibrateableTimeDomainsEXT: Callable[..., int]
    vkCreateDebugUtilsMessengerEXT: Callable[..., int]
    vkDestroyDebugUtilsMessengerEXT: Callable[..., None]
    vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR: Callable[..., int]
    OPTIONAL = frozenset(['vkGetPhysicalDeviceCalibrateableTimeDomainsEXT', 'vkCreateDebugUtilsMessengerEXT', 'vkDestroyDebugUtilsMessengerEXT', 'vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR'])
    PROTOTYPES = {
        'vkDestroyInstance': C.CFUNCTYPE(None, C.c_void_p, C.c_void_p),
        'vkEnumeratePhysicalDevices': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(C.c_uint32), P(C.c_void_p)),
        'vkGetPhysicalDeviceProperties': C.CFUNCTYPE(None, C.c_void_p, P(VkPhysicalDeviceProperties)),
        'vkGetPhysicalDeviceProperties2': C.CFUNCTYPE(None, C.c_void_p, P(VkPhysicalDeviceProperties2)),
        'vkGetPhysicalDeviceFeatures2': C.CFUNCTYPE(None, C.c_void_p, P(VkPhysicalDeviceFeatures2)),
        'vkGetPhysicalDeviceQueueFamilyProperties': C.CFUNCTYPE(None, C.c_void_p, P(C.c_uint32), P(VkQueueFamilyProperties)),
        'vkGetPhysicalDeviceMemoryProperties': C.CFUNCTYPE(None, C.c_void_p, P(VkPhysicalDeviceMemoryProperties)),
        'vkGetPhysicalDeviceMemoryProperties2': C.CFUNCTYPE(None, C.c_void_p, P(VkPhysicalDeviceMemoryProperties2)),
        'vkEnumerateDeviceExtensionProperties': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_char_p, P(C.c_uint32), P(VkExtensionProperties)),
        'vkCreateDevice': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkDeviceCreateInfo), C.c_void_p, P(C.c_void_p)),
        'vkGetDeviceProcAddr': C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_char_p),
        'vkGetPhysicalDeviceExternalBufferProperties': C.CFUNCTYPE(None, C.c_void_p, P(VkPhysicalDeviceExternalBufferInfo), P(VkExternalBufferProperties)),
        'vkGetPhysicalDeviceCalibrateableTimeDomainsEXT': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(C.c_uint32), P(C.c_int32)),
        'vkCreateDebugUtilsMessengerEXT': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkDebugUtilsMessengerCreateInfoEXT), C.c_void_p, P(C.c_uint64)),
        'vkDestroyDebugUtilsMessengerEXT': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(C.c_uint32), P(VkCooperativeMatrixPropertiesKHR)),
    }


class DeviceCommands(Commands):
    vkDestroyDevice: Callable[..., None]
    vkDeviceWaitIdle: Callable[..., int]
    vkGetDeviceQueue: Callable[..., None]
    vkAllocateMemory: Callable[..., int]
    vkFreeMemory: Callable[..., None]
    vkMapMemory: Callable[..., int]
    vkCreateBuffer: Callable[..., int]
    vkDestroyBuffer: Callable[..., None]
    vkGetBufferMemoryRequirements: Callable[..., None]
    vkBindBufferMemory: Callable[..., int]
    vkQueueBindSparse: Callable[..., int]
    vkQueueWaitIdle: Callable[..., int]
    vkGetBufferDeviceAddress: Callable[..., int]
    vkGetMemoryHostPointerPropertiesEXT: Callable[..., int]
    vkCreateShaderModule: Callable[..., int]
    vkDestroyShaderModule: Callable[..., None]
    vkCreatePipelineCache: Callable[..., int]
    vkDestroyPipelineCache: Callable[..., None]
    vkGetPipelineCacheData: Callable[..., int]
    vkCreateComputePipelines: Callable[..., int]
    vkDestroyPipeline: Callable[..., None]
    vkCreatePipelineLayout: Callable[..., int]
    vkDestroyPipelineLayout: Callable[..., None]
    vkCreateCommandPool: Callable[..., int]
    vkDestroyCommandPool: Callable[..., None]
    vkAllocateCommandBuffers: Callable[..., int]
    vkFreeCommandBuffers: Callable[..., None]
    vkBeginCommandBuffer: Callable[..., int]
    vkEndCommandBuffer: Callable[..., int]
    vkCmdBindPipeline: Callable[..., None]
    vkCmdPushConstants: Callable[..., None]
    vkCmdDispatch: Callable[..., None]
    vkCmdCopyBuffer: Callable[..., None]
    vkCmdFillBuffer: Callable[..., None]
    vkCmdPipelineBarrier2: Callable[..., None]
    vkCreateQueryPool: Callable[..., int]
    vkDestroyQueryPool: Callable[..., None]
    vkResetQueryPool: Callable[..., None]
    vkCmdResetQueryPool: Callable[..., None]
    vkCmdWriteTimestamp2: Callable[..., None]
    vkGetQueryPoolResults: Callable[..., int]
    vkQueueSubmit2: Callable[..., int]
    vkCreateSemaphore: Callable[..., int]
    vkDestroySemaphore: Callable[..., None]
    vkWaitSemaphores: Callable[..., int]
    vkGetSemaphoreCounterValue: Callable[..., int]
    vkGetCalibratedTimestampsEXT: Callable[..., int]
    vkCreateDescriptorSetLayout: Callable[..., int]
    vkDestroyDescriptorSetLayout: Callable[..., None]
    vkCreateDescriptorPool: Callable[..., int]
    vkDestroyDescriptorPool: Callable[..., None]
    vkAllocateDescriptorSets: Callable[..., int]
    vkUpdateDescriptorSets: Callable[..., None]
    vkCmdBindDescriptorSets: Callable[..., None]
    vkCmdPushDescriptorSetKHR: Callable[..., None]
    vkSetDebugUtilsObjectNameEXT: Callable[..., int]
    vkCmdBeginDebugUtilsLabelEXT: Callable[..., None]
    vkCmdEndDebugUtilsLabelEXT: Callable[..., None]
    vkCreateCuModuleNVX: Callable[..., int]
    vkDestroyCuModuleNVX: Callable[..., None]
    vkCreateCuFunctionNVX: Callable[..., int]
    vkDestroyCuFunctionNVX: Callable[..., None]
    vkCmdCuLaunchKernelNVX: Callable[..., None]
    OPTIONAL = frozenset(['vkGetMemoryHostPointerPropertiesEXT', 'vkGetCalibratedTimestampsEXT', 'vkCmdPushDescriptorSetKHR', 'vkSetDebugUtilsObjectNameEXT', 'vkCmdBeginDebugUtilsLabelEXT', 'vkCmdEndDebugUtilsLabelEXT', 'vkCreateCuModuleNVX', 'vkDestroyCuModuleNVX', 'vkCreateCuFunctionNVX', 'vkDestroyCuFunctionNVX', 'vkCmdCuLaunchKernelNVX'])
    PROTOTYPES = {
        'vkDestroyDevice': C.CFUNCTYPE(None, C.c_void_p, C.c_void_p),
        'vkDeviceWaitIdle': C.CFUNCTYPE(C.c_int32, C.c_void_p),
        'vkGetDeviceQueue': C.CFUNCTYPE(None, C.c_void_p, C.c_uint32, C.c_uint32, P(C.c_void_p)),
        'vkAllocateMemory': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkMemoryAllocateInfo), C.c_void_p, P(C.c_uint64)),
        'vkFreeMemory': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkMapMemory': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_uint64, C.c_uint64, C.c_uint32, P(C.c_void_p)),
        'vkCreateBuffer': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkBufferCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyBuffer': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkGetBufferMemoryRequirements': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, P(VkMemoryRequirements)),
        'vkBindBufferMemory': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_uint64, C.c_uint64),
        'vkQueueBindSparse': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, P(VkBindSparseInfo), C.c_uint64),
        'vkQueueWaitIdle': C.CFUNCTYPE(C.c_int32, C.c_void_p),
        'vkGetBufferDeviceAddress': C.CFUNCTYPE(C.c_uint64, C.c_void_p, P(VkBufferDeviceAddressInfo)),
        'vkGetMemoryHostPointerPropertiesEXT': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_int32, C.c_void_p, P(VkMemoryHostPointerPropertiesEXT)),
        'vkCreateShaderModule': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkShaderModuleCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyShaderModule': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkCreatePipelineCache': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkPipelineCacheCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyPipelineCache': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkGetPipelineCacheData': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, P(C.c_size_t), C.c_void_p),
        'vkCreateComputePipelines': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_uint32, P(VkComputePipelineCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyPipeline': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkCreatePipelineLayout': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkPipelineLayoutCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyPipelineLayout': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkCreateCommandPool': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkCommandPoolCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyCommandPool': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkAllocateCommandBuffers': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkCommandBufferAllocateInfo), P(C.c_void_p)),
        'vkFreeCommandBuffers': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint32, P(C.c_void_p)),
        'vkBeginCommandBuffer': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkCommandBufferBeginInfo)),
        'vkEndCommandBuffer': C.CFUNCTYPE(C.c_int32, C.c_void_p),
        'vkCmdBindPipeline': C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_uint64),
        'vkCmdPushConstants': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint32, C.c_uint32, C.c_uint32, C.c_void_p),
        'vkCmdDispatch': C.CFUNCTYPE(None, C.c_void_p, C.c_uint32, C.c_uint32, C.c_uint32),
        'vkCmdCopyBuffer': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint64, C.c_uint32, P(VkBufferCopy)),
        'vkCmdFillBuffer': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint64, C.c_uint64, C.c_uint32),
        'vkCmdPipelineBarrier2': C.CFUNCTYPE(None, C.c_void_p, P(VkDependencyInfo)),
        'vkCreateQueryPool': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkQueryPoolCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyQueryPool': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkResetQueryPool': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint32, C.c_uint32),
        'vkCmdResetQueryPool': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint32, C.c_uint32),
        'vkCmdWriteTimestamp2': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_uint64, C.c_uint32),
        'vkGetQueryPoolResults': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_uint32, C.c_uint32, C.c_size_t, C.c_void_p, C.c_uint64, C.c_uint32),
        'vkQueueSubmit2': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, P(VkSubmitInfo2), C.c_uint64),
        'vkCreateSemaphore': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkSemaphoreCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroySemaphore': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkWaitSemaphores': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkSemaphoreWaitInfo), C.c_uint64),
        'vkGetSemaphoreCounterValue': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, P(C.c_uint64)),
        'vkGetCalibratedTimestampsEXT': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, P(C.c_uint64), P(C.c_uint64)),
        'vkCreateDescriptorSetLayout': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkDescriptorSetLayoutCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyDescriptorSetLayout': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkCreateDescriptorPool': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkDescriptorPoolCreateInfo), C.c_void_p, P(C.c_uint64)),
        'vkDestroyDescriptorPool': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkAllocateDescriptorSets': C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, P(C.c_uint64)),
        'vkUpdateDescriptorSets': C.CFUNCTYPE(None, C.c_void_p, C.c_uint32, C.c_void_p, C.c_uint32, C.c_void_p),
        'vkCmdBindDescriptorSets': C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_uint64, C.c_uint32, C.c_uint32, P(C.c_uint64), C.c_uint32, P(C.c_uint32)),
        'vkCmdPushDescriptorSetKHR': C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_uint64, C.c_uint32, C.c_uint32, C.c_void_p),
        'vkSetDebugUtilsObjectNameEXT': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkDebugUtilsObjectNameInfoEXT)),
        'vkCmdBeginDebugUtilsLabelEXT': C.CFUNCTYPE(None, C.c_void_p, P(VkDebugUtilsLabelEXT)),
        'vkCmdEndDebugUtilsLabelEXT': C.CFUNCTYPE(None, C.c_void_p),
        'vkCreateCuModuleNVX': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkCuModuleCreateInfoNVX), C.c_void_p, P(C.c_uint64)),
        'vkDestroyCuModuleNVX': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkCreateCuFunctionNVX': C.CFUNCTYPE(C.c_int32, C.c_void_p, P(VkCuFunctionCreateInfoNVX), C.c_void_p, P(C.c_uint64)),
        'vkDestroyCuFunctionNVX': C.CFUNCTYPE(None, C.c_void_p, C.c_uint64, C.c_void_p),
        'vkCmdCuLaunchKernelNVX': C.CFUNCTYPE(None, C.c_void_p, P(VkCuLaunchInfoNVX)),
    }
