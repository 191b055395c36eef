"""From dispatches to executables: schedules make kernel IR, emitters turn it into LLVM IR or SPIR-V."""
