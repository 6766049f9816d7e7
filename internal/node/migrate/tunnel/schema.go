package tunnel

import "maps"

// domainSchema has the allowed elements of an arriving domain, as libvirt 9.0 and
// 11.3 format it (docs/formatdomain.rst). Elements are missing because they name something of the host
// (hostdev, filesystem, shmem, qemu:commandline, scripts, backends, seclabels other than
// dynamic ones, network disks, secrets), or because they are rare.
const domainSchema = `
domain type=qemu|kvm
domain/name =name
domain/uuid =agreed-uuid
domain/genid =uuid
domain/title =free
domain/description =free
domain/metadata =any
domain/memory unit=KiB dumpCore=on|off =memory
domain/currentMemory unit=KiB =memory
domain/maxMemory unit=KiB slots=1..256 =0..17179869184
domain/memoryBacking
domain/memoryBacking/hugepages
domain/memoryBacking/hugepages/page size=1..16777216 unit=KiB nodeset=set
domain/memoryBacking/nosharepages
domain/memoryBacking/source type=memfd|anonymous
domain/memoryBacking/access mode=shared|private
domain/memoryBacking/allocation mode=immediate|ondemand threads=1..64
domain/memoryBacking/discard
domain/memoryBacking/locked
domain/vcpu placement=static current=cpus cpuset=cpuset =cpus
domain/vcpus
domain/vcpus/vcpu id=0..1023 enabled=yes|no hotpluggable=yes|no order=0..1024
domain/iothreads =0..64
domain/iothreadids
domain/iothreadids/iothread id=1..1024 thread_pool_min=0..64 thread_pool_max=0..64
domain/iothreadids/iothread/poll max=0..2147483647 grow=0..2147483647 shrink=0..2147483647
domain/defaultiothread thread_pool_min=0..64 thread_pool_max=0..64
domain/cputune
domain/cputune/shares =2..262144
domain/cputune/period =1000..1000000
domain/cputune/quota =-1..17592186044415
domain/cputune/global_period =1000..1000000
domain/cputune/global_quota =-1..17592186044415
domain/cputune/emulator_period =1000..1000000
domain/cputune/emulator_quota =-1..17592186044415
domain/cputune/iothread_period =1000..1000000
domain/cputune/iothread_quota =-1..17592186044415
domain/cputune/vcpupin vcpu=0..1023 cpuset=cpuset
domain/cputune/emulatorpin cpuset=cpuset
domain/cputune/iothreadpin iothread=1..1024 cpuset=cpuset
domain/numatune
domain/numatune/memory mode=strict|preferred|interleave|restrictive placement=static nodeset=nodeset
domain/numatune/memnode cellid=0..255 mode=strict|preferred|interleave|restrictive nodeset=nodeset
domain/blkiotune
domain/blkiotune/weight =10..1000
domain/memtune
domain/memtune/hard_limit unit=KiB =0..9007199254740991
domain/memtune/soft_limit unit=KiB =0..9007199254740991
domain/memtune/swap_hard_limit unit=KiB =0..9007199254740991
domain/resource
domain/resource/partition =/machine
domain/sysinfo type=smbios
domain/sysinfo/bios
domain/sysinfo/bios/entry name=word =free
domain/sysinfo/system
domain/sysinfo/system/entry name=word =free
domain/sysinfo/baseBoard
domain/sysinfo/baseBoard/entry name=word =free
domain/sysinfo/chassis
domain/sysinfo/chassis/entry name=word =free
domain/sysinfo/oemStrings
domain/sysinfo/oemStrings/entry =free
domain/os firmware=bios|efi
domain/os/type arch=word machine=word =hvm
domain/os/firmware
domain/os/firmware/feature enabled=yes|no name=word
domain/os/loader readonly=yes secure=yes|no type=rom|pflash stateless=yes|no format=raw|qcow2 =read
domain/os/nvram template=read templateFormat=raw|qcow2 format=raw|qcow2 =nvram
domain/os/kernel =read
domain/os/initrd =read
domain/os/dtb =read
domain/os/cmdline =free
domain/os/boot dev=fd|hd|cdrom|network
domain/os/bootmenu enable=yes|no timeout=0..65535
domain/os/bios useserial=yes|no rebootTimeout=-1..65535
domain/os/smbios mode=emulate|sysinfo
domain/features
domain/features/acpi
domain/features/apic eoi=on|off
domain/features/pae
domain/features/hap state=on|off
domain/features/viridian
domain/features/privnet
domain/features/vmport state=on|off
domain/features/smm state=on|off
domain/features/pmu state=on|off
domain/features/pvspinlock state=on|off
domain/features/ps2 state=on|off
domain/features/msrs unknown=ignore|fault
domain/features/smm/tseg unit=KiB|MiB =0..1048576
domain/features/vmcoreinfo state=on|off
domain/features/ioapic driver=kvm|qemu
domain/features/gic version=word
domain/features/kvm
domain/features/kvm/* state=on|off
domain/features/hyperv mode=custom
domain/features/hyperv/* state=on|off retries=0..4294967295 value=word
domain/features/hyperv/stimer/direct state=on|off
domain/cpu mode=custom|host-model|host-passthrough|maximum match=minimum|exact|strict check=none|partial|full migratable=on|off
domain/cpu/model fallback=allow|forbid vendor_id=word =word
domain/cpu/vendor =word
domain/cpu/topology sockets=1..1024 dies=1..1024 clusters=1..1024 cores=1..1024 threads=1..1024
domain/cpu/cache level=1..9 mode=emulate|passthrough|disable
domain/cpu/maxphysaddr mode=emulate|passthrough bits=1..64 limit=1..64
domain/cpu/feature policy=force|require|optional|disable|forbid name=word
domain/cpu/numa
domain/cpu/numa/cell id=0..255 cpus=set memory=memory unit=KiB memAccess=shared|private discard=yes|no
domain/clock offset=utc|localtime|timezone|variable|absolute basis=utc|localtime adjustment=reset|-9999999999..9999999999 timezone=zone start=0..99999999999
domain/clock/timer name=word track=word tickpolicy=word present=yes|no frequency=0..99999999999 mode=word
domain/clock/timer/catchup threshold=0..99999999999 slew=0..99999999999 limit=0..99999999999
domain/on_poweroff =destroy|restart|preserve|rename-restart
domain/on_reboot =destroy|restart|preserve|rename-restart
domain/on_crash =destroy|restart|preserve|rename-restart|coredump-destroy
domain/on_lockfailure =poweroff|restart|pause|ignore
domain/pm
domain/pm/suspend-to-mem enabled=yes|no
domain/pm/suspend-to-disk enabled=yes|no
domain/seclabel type=dynamic model=selinux|apparmor|dac relabel=yes
domain/devices
domain/devices/emulator =program
domain/devices/disk type=file|block device=disk|cdrom|floppy model=word snapshot=no|internal|external
domain/devices/disk/driver name=qemu type=raw|qcow2 cache=none|writeback|writethrough|directsync|unsafe|default error_policy=word rerror_policy=word io=native|threads|io_uring ioeventfd=on|off event_idx=on|off copy_on_read=on|off discard=unmap|ignore iothread=1..1024 detect_zeroes=off|on|unmap queues=1..256 queue_size=1..1024 packed=on|off discard_no_unref=on|off
domain/devices/disk/source file=disk dev=disk index=0..999999 startupPolicy=mandatory|requisite|optional
domain/devices/disk/backingStore type=file|block index=0..999999 ^
domain/devices/disk/backingStore/format type=raw|qcow2
domain/devices/disk/backingStore/source file=disk dev=disk index=0..999999
domain/devices/disk/target dev=word bus=word tray=open|closed removable=on|off rotation_rate=0..65535
domain/devices/disk/iotune
domain/devices/disk/iotune/* =0..999999999999999
domain/devices/disk/readonly
domain/devices/disk/shareable
domain/devices/disk/serial =free
domain/devices/disk/wwn =word
domain/devices/disk/vendor =free
domain/devices/disk/product =free
domain/devices/disk/boot order=1..9999
domain/devices/disk/blockio logical_block_size=0..2097152 physical_block_size=0..2097152 discard_granularity=0..4294967295
domain/devices/disk/geometry cyls=1..4294967295 heads=1..255 secs=1..255 trans=word
domain/devices/controller type=usb|sata|scsi|ide|fdc|pci|virtio-serial|ccid index=0..255 model=word ports=0..128 vectors=0..2048
domain/devices/controller/driver queues=1..256 cmd_per_lun=0..65535 max_sectors=0..65535 ioeventfd=on|off iothread=1..1024 packed=on|off
domain/devices/controller/model name=word
domain/devices/controller/target chassisNr=0..255 chassis=0..255 port=0..255 busNr=0..255 index=0..255 hotplug=on|off
domain/devices/controller/master startport=0..15
domain/devices/interface type=bridge|network|user trustGuestRxFilters=yes|no
domain/devices/interface/mac address=mac type=word check=yes|no
domain/devices/interface/source bridge=network network=network portgroup=network portid=uuid
domain/devices/interface/target dev=ifname
domain/devices/interface/model type=virtio|virtio-transitional|virtio-non-transitional|e1000|e1000-82544gc|e1000-82545em|e1000e|igb|rtl8139|ne2k_isa|ne2k_pci|pcnet|i82551|i82557b|i82558b|i82559er|vmxnet3|usb-net|spapr-vlan|lan9118|smc91c111
domain/devices/interface/driver name=qemu|vhost queues=1..64 rx_queue_size=1..1024 tx_queue_size=1..1024 txmode=word ioeventfd=on|off event_idx=on|off packed=on|off
domain/devices/interface/link state=up|down
domain/devices/interface/mtu size=68..65535
domain/devices/interface/vlan
domain/devices/interface/vlan/tag id=0..4095
domain/devices/interface/virtualport type=openvswitch
domain/devices/interface/virtualport/parameters interfaceid=uuid profileid=word
domain/devices/interface/bandwidth
domain/devices/interface/bandwidth/inbound average=0..4294967295 peak=0..4294967295 burst=0..4294967295 floor=0..4294967295
domain/devices/interface/bandwidth/outbound average=0..4294967295 peak=0..4294967295 burst=0..4294967295
domain/devices/interface/filterref filter=word
domain/devices/interface/filterref/parameter name=word value=word
domain/devices/interface/port isolated=yes|no
domain/devices/interface/coalesce
domain/devices/interface/coalesce/rx
domain/devices/interface/coalesce/rx/frames max=0..4294967295
domain/devices/interface/boot order=1..9999
domain/devices/interface/rom bar=on|off enabled=yes|no
domain/devices/serial type=pty|file|null
domain/devices/serial/source path=written append=on|off
domain/devices/serial/target type=word port=0..255
domain/devices/serial/target/model name=word
domain/devices/serial/log file=written append=on|off
domain/devices/parallel type=pty|file|null
domain/devices/parallel/source path=written append=on|off
domain/devices/parallel/target type=word port=0..255
domain/devices/parallel/log file=written append=on|off
domain/devices/console type=pty|file|null
domain/devices/console/source path=written append=on|off
domain/devices/console/target type=word port=0..255
domain/devices/console/log file=written append=on|off
domain/devices/channel type=pty|unix|null|spicevmc|qemu-vdagent
domain/devices/channel/source mode=bind path=socket
domain/devices/channel/source/clipboard copypaste=yes|no
domain/devices/channel/source/mouse mode=client|server
domain/devices/channel/target type=virtio name=word
domain/devices/redirdev bus=usb type=spicevmc
domain/devices/redirdev/boot order=1..9999
domain/devices/redirfilter
domain/devices/redirfilter/usbdev class=word vendor=word product=word version=word allow=yes|no
domain/devices/smartcard mode=passthrough type=spicevmc
domain/devices/tpm model=tpm-tis|tpm-crb|tpm-spapr
domain/devices/tpm/backend type=emulator version=1.2|2.0 persistent_state=yes|no
domain/devices/tpm/backend/encryption secret=uuid
domain/devices/tpm/backend/active_pcr_banks
domain/devices/tpm/backend/active_pcr_banks/*
domain/devices/vsock model=word
domain/devices/vsock/cid auto=yes|no address=3..4294967295
domain/devices/input type=mouse|tablet|keyboard bus=ps2|usb|virtio model=word
domain/devices/graphics type=vnc|spice port=-1|5900..65535 tlsPort=-1|5900..65535 autoport=yes|no websocket=-1|5700..65535 listen=listen keymap=word sharePolicy=word passwd=free passwdValidTo=word connected=keep|disconnect|fail defaultMode=any|secure|insecure
domain/devices/graphics/listen type=address|none address=listen
domain/devices/graphics/image compression=word
domain/devices/graphics/jpeg compression=word
domain/devices/graphics/zlib compression=word
domain/devices/graphics/playback compression=on|off
domain/devices/graphics/streaming mode=filter|all|off
domain/devices/graphics/mouse mode=client|server
domain/devices/graphics/clipboard copypaste=yes|no
domain/devices/graphics/filetransfer enable=yes|no
domain/devices/graphics/gl enable=no
domain/devices/graphics/channel name=word mode=any|secure|insecure
domain/devices/sound model=word
domain/devices/sound/codec type=word
domain/devices/audio id=1..255 type=none|spice
domain/devices/video
domain/devices/video/model type=word device=virtio-vga|virtio-gpu ram=0..1048576 vram=0..1048576 vram64=0..1048576 vgamem=0..1048576 heads=1..16 primary=yes|no blob=on|off
domain/devices/video/model/acceleration accel3d=no accel2d=yes|no
domain/devices/video/model/resolution x=0..16384 y=0..16384
domain/devices/hub type=usb
domain/devices/watchdog model=word action=reset|shutdown|poweroff|pause|none|inject-nmi
domain/devices/memory model=dimm|virtio-mem access=private|shared discard=yes|no
domain/devices/memory/source
domain/devices/memory/source/pagesize unit=KiB =4..16777216
domain/devices/memory/source/nodemask =nodeset
domain/devices/memory/target
domain/devices/memory/target/size unit=KiB =memory
domain/devices/memory/target/node =0..255
domain/devices/memory/target/block unit=KiB =0..16777216
domain/devices/memory/target/requested unit=KiB =memory
domain/devices/memory/target/address base=word
domain/devices/memballoon model=word autodeflate=on|off freePageReporting=on|off
domain/devices/memballoon/stats period=0..2147483647
domain/devices/memballoon/driver packed=on|off
domain/devices/rng model=word
domain/devices/rng/rate bytes=0..4294967295 period=0..4294967295
domain/devices/rng/backend model=random|builtin =/dev/urandom|/dev/random|
domain/devices/panic model=word
domain/devices/iommu model=word
domain/devices/iommu/driver intremap=on|off caching_mode=on|off eim=on|off iotlb=on|off aw_bits=1..64
`

// deviceSchema has the allowed elements of every device.
const deviceSchema = `
alias name=word
address type=word domain=0..65535 bus=0..255 slot=0..255 function=0..7 multifunction=on|off controller=0..31 target=0..255 unit=0..16383 port=word base=word iobase=0..65535 irq=0..255
`

// newDomainSchema combines domainSchema and deviceSchema.
func newDomainSchema() *schema {
	s := newSchema(domainSchema)
	for _, device := range s.children["domain"].children["devices"].children {
		maps.Copy(device.children, newSchema(deviceSchema).children)
	}
	return s
}

// cookieSchema has the allowed elements of the source's migration cookie
// (qemu_migration_cookie.c). The others create something on the target: a persistent
// domain, an NBD server, ports of a switch.
const cookieSchema = `
qemu-migration
qemu-migration/name =name
qemu-migration/uuid =agreed-uuid
qemu-migration/hostname =host
qemu-migration/hostuuid =uuid
qemu-migration/feature name=lockstate
qemu-migration/lockstate driver=word
qemu-migration/allowReboot value=yes|no
qemu-migration/capabilities
qemu-migration/capabilities/cap name=word auto=yes|no
qemu-migration/statistics
qemu-migration/statistics/* =number
`

// newCookieSchema returns cookieSchema with the CPU of domainSchema.
func newCookieSchema() *schema {
	s := newSchema(cookieSchema)
	s.children["qemu-migration"].children["cpu"] = newSchema(domainSchema).children["domain"].children["cpu"]
	return s
}
