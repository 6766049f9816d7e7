package tunnel

import "maps"

// domainSchema has the allowed elements of an arriving domain, as libvirt 9.0 formats it
// (docs/formatdomain.rst). Elements are missing because they name something of the host
// (hostdev, filesystem, shmem, qemu:commandline, scripts, backends, seclabels other than
// dynamic ones, network disks, secrets), or because they are rare.
const domainSchema = `
domain type=qemu|kvm
domain/name =name
domain/uuid =agreed-uuid
domain/genid =uuid
domain/title =free
domain/description =free
domain/metadata
domain/metadata/kubevirt:kubevirt xmlns:kubevirt=kubevirt
domain/metadata/kubevirt:kubevirt/kubevirt:uid =word
domain/metadata/kubevirt:kubevirt/kubevirt:graceperiod
domain/metadata/kubevirt:kubevirt/kubevirt:graceperiod/kubevirt:deletionGracePeriodSeconds =word
domain/metadata/kubevirt xmlns=kubevirt
domain/metadata/kubevirt/uid =word
domain/metadata/kubevirt/graceperiod
domain/metadata/kubevirt/graceperiod/deletionGracePeriodSeconds =word
domain/metadata/kubevirt/graceperiod/markedForGracefulShutdown =word
domain/memory unit=word dumpCore=on|off =number
domain/currentMemory unit=word =number
domain/maxMemory unit=word slots=number =number
domain/memoryBacking
domain/memoryBacking/hugepages
domain/memoryBacking/hugepages/page size=number unit=word nodeset=set
domain/memoryBacking/nosharepages
domain/memoryBacking/source type=memfd|anonymous
domain/memoryBacking/access mode=shared|private
domain/memoryBacking/allocation mode=immediate|ondemand threads=number
domain/memoryBacking/discard
domain/vcpu placement=static current=number =number
domain/vcpus
domain/vcpus/vcpu id=number enabled=yes|no hotpluggable=yes|no order=number
domain/iothreads =number
domain/iothreadids
domain/iothreadids/iothread id=number
domain/cputune
domain/cputune/shares =number
domain/cputune/period =number
domain/cputune/quota =number
domain/cputune/global_period =number
domain/cputune/global_quota =number
domain/cputune/emulator_period =number
domain/cputune/emulator_quota =number
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
domain/os firmware=bios|efi
domain/os/type arch=word machine=word =hvm
domain/os/firmware
domain/os/firmware/feature enabled=yes|no name=word
domain/os/loader readonly=yes secure=yes|no type=rom|pflash stateless=yes|no format=raw|qcow2 =path
domain/os/nvram template=path format=raw|qcow2 =path
domain/os/kernel =path
domain/os/initrd =path
domain/os/dtb =path
domain/os/cmdline =free
domain/os/boot dev=fd|hd|cdrom|network
domain/os/bootmenu enable=yes|no timeout=number
domain/os/bios useserial=yes|no rebootTimeout=number
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
domain/features/vmcoreinfo state=on|off
domain/features/ioapic driver=kvm|qemu
domain/features/gic version=word
domain/features/kvm
domain/features/kvm/* state=on|off
domain/features/hyperv mode=custom
domain/features/hyperv/* state=on|off retries=number value=word
domain/cpu mode=custom|host-model|host-passthrough match=minimum|exact|strict check=none|partial|full migratable=on|off
domain/cpu/model fallback=allow|forbid vendor_id=word =word
domain/cpu/vendor =word
domain/cpu/topology sockets=number dies=number clusters=number cores=number threads=number
domain/cpu/cache level=number mode=emulate|passthrough|disable
domain/cpu/maxphysaddr mode=emulate|passthrough bits=number limit=number
domain/cpu/feature policy=force|require|optional|disable|forbid name=word
domain/cpu/numa
domain/cpu/numa/cell id=number cpus=set memory=number unit=word memAccess=shared|private discard=yes|no
domain/clock offset=utc|localtime|timezone|variable|absolute basis=utc|localtime adjustment=word timezone=free start=number
domain/clock/timer name=word track=word tickpolicy=word present=yes|no frequency=number mode=word
domain/on_poweroff =destroy|restart|preserve|rename-restart
domain/on_reboot =destroy|restart|preserve|rename-restart
domain/on_crash =destroy|restart|preserve|rename-restart|coredump-destroy|coredump-restart
domain/on_lockfailure =poweroff|restart|pause|ignore
domain/pm
domain/pm/suspend-to-mem enabled=yes|no
domain/pm/suspend-to-disk enabled=yes|no
domain/seclabel type=dynamic model=selinux|apparmor|dac relabel=yes
domain/devices
domain/devices/emulator =emulator
domain/devices/disk type=file|block device=disk|cdrom|floppy model=word snapshot=no|internal|external
domain/devices/disk/driver name=qemu type=raw|qcow2 cache=none|writeback|writethrough|directsync|unsafe|default error_policy=word rerror_policy=word io=native|threads|io_uring ioeventfd=on|off event_idx=on|off copy_on_read=on|off discard=unmap|ignore iothread=number detect_zeroes=off|on|unmap queues=number queue_size=number packed=on|off discard_no_unref=on|off
domain/devices/disk/source file=path dev=path index=number startupPolicy=mandatory|requisite|optional
domain/devices/disk/backingStore type=file|block index=number ^
domain/devices/disk/backingStore/format type=raw|qcow2
domain/devices/disk/backingStore/source file=path dev=path index=number
domain/devices/disk/target dev=word bus=word tray=open|closed removable=on|off rotation_rate=number
domain/devices/disk/iotune
domain/devices/disk/iotune/* =number
domain/devices/disk/readonly
domain/devices/disk/shareable
domain/devices/disk/serial =free
domain/devices/disk/wwn =word
domain/devices/disk/vendor =free
domain/devices/disk/product =free
domain/devices/disk/boot order=number
domain/devices/disk/blockio logical_block_size=number physical_block_size=number discard_granularity=number
domain/devices/disk/geometry cyls=number heads=number secs=number trans=word
domain/devices/controller type=usb|sata|scsi|ide|fdc|pci|virtio-serial|ccid index=number model=word ports=number vectors=number
domain/devices/controller/driver queues=number cmd_per_lun=number max_sectors=number ioeventfd=on|off iothread=number packed=on|off
domain/devices/controller/model name=word
domain/devices/controller/target chassisNr=number chassis=number port=number busNr=number index=number hotplug=on|off
domain/devices/controller/master startport=number
domain/devices/interface type=bridge|network|user
domain/devices/interface/mac address=word type=word check=yes|no
domain/devices/interface/source bridge=network network=network portgroup=network
domain/devices/interface/target dev=word
domain/devices/interface/model type=word
domain/devices/interface/driver name=qemu|vhost queues=number rx_queue_size=number tx_queue_size=number txmode=word ioeventfd=on|off event_idx=on|off packed=on|off
domain/devices/interface/link state=up|down
domain/devices/interface/mtu size=number
domain/devices/interface/boot order=number
domain/devices/interface/rom bar=on|off enabled=yes|no
domain/devices/serial type=pty|file|null
domain/devices/serial/source path=path append=on|off
domain/devices/serial/target type=word port=number
domain/devices/serial/target/model name=word
domain/devices/serial/log file=path append=on|off
domain/devices/console type=pty|file|null
domain/devices/console/source path=path append=on|off
domain/devices/console/target type=word port=number
domain/devices/console/log file=path append=on|off
domain/devices/channel type=pty|unix|null|spicevmc
domain/devices/channel/source mode=bind path=path
domain/devices/channel/target type=virtio name=word
domain/devices/input type=mouse|tablet|keyboard bus=ps2|usb|virtio model=word
domain/devices/graphics type=vnc|spice port=number tlsPort=number autoport=yes|no websocket=number listen=127.0.0.1|::1 keymap=word sharePolicy=word
domain/devices/graphics/listen type=address|none address=127.0.0.1|::1
domain/devices/graphics/image compression=word
domain/devices/sound model=word
domain/devices/sound/codec type=word
domain/devices/audio id=number type=none|spice
domain/devices/video
domain/devices/video/model type=word ram=number vram=number vram64=number vgamem=number heads=number primary=yes|no blob=on|off
domain/devices/video/model/resolution x=number y=number
domain/devices/hub type=usb
domain/devices/watchdog model=word action=reset|shutdown|poweroff|pause|none|inject-nmi
domain/devices/memballoon model=word autodeflate=on|off freePageReporting=on|off
domain/devices/memballoon/stats period=number
domain/devices/memballoon/driver packed=on|off
domain/devices/rng model=word
domain/devices/rng/rate bytes=number period=number
domain/devices/rng/backend model=random|builtin =/dev/urandom|/dev/random|
domain/devices/panic model=word
domain/devices/iommu model=word
domain/devices/iommu/driver intremap=on|off caching_mode=on|off eim=on|off iotlb=on|off aw_bits=number
`

// deviceSchema has the allowed elements of every device.
const deviceSchema = `
alias name=word
address type=word domain=number bus=number slot=number function=number multifunction=on|off controller=number target=number unit=number port=word iobase=number irq=number
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
qemu-migration/lockstate/leases =free
qemu-migration/allowReboot value=yes|no
qemu-migration/capabilities
qemu-migration/capabilities/cap name=word auto=yes|no
qemu-migration/statistics
qemu-migration/statistics/* =number
`

// newCookieSchema is cookieSchema with the CPU of domainSchema.
func newCookieSchema() *schema {
	s := newSchema(cookieSchema)
	s.children["qemu-migration"].children["cpu"] = newSchema(domainSchema).children["domain"].children["cpu"]
	return s
}
