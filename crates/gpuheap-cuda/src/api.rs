//! The functions of the driver that are used here, as a table of pointers. Their signatures are written down once, below.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::raw::{
    AccessDesc, AllocationHandle, AllocationProp, Code, Context, DeviceId, DevicePtr, Event, Function, MemLocation,
    MemoryPool, Module, PoolProps, Stream,
};

macro_rules! table {
    (
        needed { $($needed:ident($($needed_type:ty),*);)* }
        newer { $($newer:ident($($newer_type:ty),*);)* }
    ) => {
        /// The driver's functions, by the symbols under which it exports them. [`Driver::api`](crate::Driver::api) has
        /// it; what is not to be had in every driver is an `Option`.
        #[derive(Clone, Copy, Debug)]
        #[allow(non_snake_case, missing_docs, reason = "the names are the driver's")]
        pub struct Api {
            $(pub $needed: unsafe extern "C" fn($($needed_type),*) -> Code,)*
            $(pub $newer: Option<unsafe extern "C" fn($($newer_type),*) -> Code>,)*
        }

        impl Api {
            /// Looks every function up. The error is the name of the first one that is needed and not there.
            ///
            /// # Safety
            ///
            /// Each address that `find` gives must be that of a function with the driver's signature of that name.
            pub(crate) unsafe fn find(find: impl Fn(&'static str) -> Option<*const c_void>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($needed: {
                        let address = find(stringify!($needed)).ok_or(stringify!($needed))?;
                        // SAFETY: `address` is a function of that signature, as the caller established; a pointer to a
                        // function has the size of a pointer here.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($needed_type),*) -> Code>(address) }
                    },)*
                    $($newer: find(stringify!($newer)).map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($newer_type),*) -> Code>(address) }
                    }),)*
                })
            }

            /// The names of all functions, those that are needed first.
            pub const NAMES: &[&str] = &[$(stringify!($needed),)* $(stringify!($newer),)*];
        }
    };
}

table! {
    needed {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGet(*mut DeviceId, c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGetName(*mut c_char, c_int, DeviceId);
        cuDeviceGetAttribute(*mut c_int, c_uint, DeviceId);
        cuDeviceTotalMem_v2(*mut usize, DeviceId);
        cuDevicePrimaryCtxRetain(*mut Context, DeviceId);
        cuDevicePrimaryCtxRelease_v2(DeviceId);
        cuDevicePrimaryCtxGetState(DeviceId, *mut c_uint, *mut c_int);
        cuCtxPushCurrent_v2(Context);
        cuCtxPopCurrent_v2(*mut Context);
        cuCtxGetCurrent(*mut Context);
        cuCtxSynchronize();
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut DevicePtr, usize);
        cuMemFree_v2(DevicePtr);
        cuMemAllocHost_v2(*mut *mut c_void, usize);
        cuMemFreeHost(*mut c_void);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemGetAddressRange_v2(*mut DevicePtr, *mut usize, DevicePtr);
        cuPointerGetAttribute(*mut c_void, c_uint, DevicePtr);
        cuMemcpyHtoD_v2(DevicePtr, *const c_void, usize);
        cuMemcpyDtoH_v2(*mut c_void, DevicePtr, usize);
        cuMemcpyDtoDAsync_v2(DevicePtr, DevicePtr, usize, Stream);
        cuMemcpyHtoDAsync_v2(DevicePtr, *const c_void, usize, Stream);
        cuMemcpyDtoHAsync_v2(*mut c_void, DevicePtr, usize, Stream);
        cuMemsetD8Async(DevicePtr, u8, usize, Stream);
        cuMemGetAllocationGranularity(*mut usize, *const AllocationProp, c_uint);
        cuMemAddressReserve(*mut DevicePtr, usize, usize, DevicePtr, u64);
        cuMemAddressFree(DevicePtr, usize);
        cuMemCreate(*mut AllocationHandle, usize, *const AllocationProp, u64);
        cuMemRelease(AllocationHandle);
        cuMemMap(DevicePtr, usize, usize, AllocationHandle, u64);
        cuMemUnmap(DevicePtr, usize);
        cuMemSetAccess(DevicePtr, usize, *const AccessDesc, usize);
        cuMemGetAccess(*mut u64, *const MemLocation, DevicePtr);
        cuMemRetainAllocationHandle(*mut AllocationHandle, *mut c_void);
        cuMemGetAllocationPropertiesFromHandle(*mut AllocationProp, AllocationHandle);
        cuMemAllocAsync(*mut DevicePtr, usize, Stream);
        cuMemFreeAsync(DevicePtr, Stream);
        cuMemPoolCreate(*mut MemoryPool, *const PoolProps);
        cuMemPoolDestroy(MemoryPool);
        cuMemPoolGetAttribute(MemoryPool, c_uint, *mut c_void);
        cuMemPoolSetAttribute(MemoryPool, c_uint, *mut c_void);
        cuMemPoolTrimTo(MemoryPool, usize);
        cuDeviceGetDefaultMemPool(*mut MemoryPool, DeviceId);
        cuStreamCreate(*mut Stream, c_uint);
        cuStreamDestroy_v2(Stream);
        cuStreamSynchronize(Stream);
        cuStreamQuery(Stream);
        cuStreamWaitEvent(Stream, Event, c_uint);
        cuEventCreate(*mut Event, c_uint);
        cuEventDestroy_v2(Event);
        cuEventRecord(Event, Stream);
        cuEventQuery(Event);
        cuEventSynchronize(Event);
        cuEventElapsedTime(*mut f32, Event, Event);
        cuModuleLoadData(*mut Module, *const c_void);
        cuModuleUnload(Module);
        cuModuleGetFunction(*mut Function, Module, *const c_char);
        cuLaunchKernel(
            Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void, *mut *mut c_void
        );
    }
    newer {
        cuCtxGetId(Context, *mut u64);
        cuThreadExchangeStreamCaptureMode(*mut c_uint);
        cuFuncGetParamInfo(Function, usize, *mut usize, *mut usize);
        cuGetProcAddress(*const c_char, *mut *mut c_void, c_int, u64);
        cuGetProcAddress_v2(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::Api;
    use crate::symbols;

    #[test]
    fn every_name_is_a_symbol_of_the_driver() {
        for name in Api::NAMES {
            assert!(symbols::all().iter().any(|symbol| symbol.name == *name), "{name}");
        }
    }

    #[test]
    fn a_library_without_the_functions_is_told_by_the_first_that_is_missing() {
        // SAFETY: no address is given, so none can be wrong.
        let none = unsafe { Api::find(|_| None) };
        assert_eq!(none.unwrap_err(), "cuInit");
        let some: *const c_void = std::ptr::without_provenance(8);
        // SAFETY: nothing of the table is called.
        let old = unsafe { Api::find(|name| (name != "cuMemCreate").then_some(some)) };
        assert_eq!(old.unwrap_err(), "cuMemCreate");
        // SAFETY: nothing of the table is called.
        let without = unsafe { Api::find(|name| (name != "cuFuncGetParamInfo").then_some(some)) };
        assert!(without.unwrap().cuFuncGetParamInfo.is_none());
    }
}
