/* A stand-in for libnvidia-ml.so.1.
 *
 * -DGPUS=n          how many GPUs
 * -DMIG             GPU 0 is partitioned: instances 1g.10gb (16 SMs) and 1c.2g.20gb (14 SMs), the latter
 *                   without its profile in the name
 * -DOLD_DRIVER      functions that came later are missing
 * -DNO_NVLINK       links are not supported
 * -DLOST=n          GPU n answers with "GPU is lost"
 * -DINIT_ERROR=n    nvmlInit fails with this code
 */
#include <stdio.h>
#include <string.h>

#ifndef GPUS
#define GPUS 1
#endif
#ifndef LOST
#define LOST -1
#endif
#ifndef INIT_ERROR
#define INIT_ERROR 0
#endif

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, GPU_IS_LOST = 15 };
enum { MOST_GPUS = 8, INSTANCES = 2, FIRST_INSTANCE = 100 };

typedef struct { int number; } device;
static device gpus[MOST_GPUS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

typedef struct {
    unsigned sm, copy, decoder, encoder, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mb;
} attributes;
typedef struct { unsigned long long total, free, used; } memory;
typedef struct {
    char legacy[16];
    unsigned domain, bus, number, pci_device, pci_subsystem;
    char id[32];
} pci;

static int is_instance(device *d) { return d->number >= FIRST_INSTANCE; }
static int lost(device *d) { return d->number == LOST; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return INIT_ERROR; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **d) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    if ((int)index == LOST) return GPU_IS_LOST;
    *d = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetName(device *d, char *text, unsigned size) {
    if (lost(d)) return GPU_IS_LOST;
    if (d->number == FIRST_INSTANCE) snprintf(text, size, "NVIDIA H200 MIG 1g.10gb");
    else snprintf(text, size, "NVIDIA H200");
    return SUCCESS;
}
int nvmlDeviceGetUUID(device *d, char *text, unsigned size) {
    snprintf(text, size, "%s-8f3c0c2a-0000-0000-0000-%012d", is_instance(d) ? "MIG" : "GPU", d->number);
    return SUCCESS;
}
int nvmlDeviceGetVbiosVersion(device *d, char *text, unsigned size) {
    (void)d;
    snprintf(text, size, "96.00.A5.00.01");
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(device *d, pci *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", 0x1b + d->number);
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
    (void)d;
    *major = 9;
    *minor = 0;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(device *d, memory *m) {
    m->total = is_instance(d) ? 10737418240ULL : 150754820096ULL;
    m->free = m->total;
    m->used = 0;
    return SUCCESS;
}
int nvmlDeviceGetEccMode(device *d, unsigned *current, unsigned *pending) {
    (void)d;
    *current = 1;
    *pending = 0;
    return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(device *d, unsigned *mode) { (void)d; *mode = 1; return SUCCESS; }
int nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned *milliwatts) { (void)d; *milliwatts = 700500; return SUCCESS; }

int nvmlDeviceGetNvLinkState(device *d, unsigned link, unsigned *active) {
    (void)d;
#ifdef NO_NVLINK
    (void)link; (void)active;
    return NOT_SUPPORTED;
#else
    if (link >= 18) return INVALID_ARGUMENT;
    *active = link != 3; /* one link is down */
    return SUCCESS;
#endif
}

#ifndef OLD_DRIVER
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13010; return SUCCESS; }
int nvmlDeviceGetNumGpuCores(device *d, unsigned *cores) { (void)d; *cores = 132 * 128; return SUCCESS; }
int nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned link, unsigned *kind) {
    (void)d; (void)link;
    *kind = 2; /* NVSwitch */
    return SUCCESS;
}
int nvmlDeviceGetMigMode(device *d, unsigned *current, unsigned *pending) {
#ifdef MIG
    *current = *pending = d->number == 0;
#else
    (void)d;
    *current = *pending = 0;
#endif
    return SUCCESS;
}
static device instances[INSTANCES] = {{FIRST_INSTANCE}, {FIRST_INSTANCE + 1}};
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { (void)d; *count = 7; return SUCCESS; }
int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **instance) {
    (void)d;
    if (index != 1 && index != 4) return NOT_FOUND; /* instances need not fill the first places */
    *instance = &instances[index == 4];
    return SUCCESS;
}
int nvmlDeviceGetAttributes_v2(device *d, attributes *a) {
    memset(a, 0, sizeof *a);
    if (d->number == FIRST_INSTANCE) { a->sm = 16; a->gpu_slices = 1; a->compute_slices = 1; a->memory_mb = 9984; }
    else { a->sm = 14; a->gpu_slices = 2; a->compute_slices = 1; a->memory_mb = 20096; }
    return SUCCESS;
}
#endif
