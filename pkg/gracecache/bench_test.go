package gracecache

import (
	"fmt"
	"testing"
)

func BenchmarkEncode(b *testing.B) {
	rec := shutdownRecord()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := encode(rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	data := encoded(b, shutdownRecord())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPut(b *testing.B) {
	s := openStore(b, b.TempDir())
	rec := shutdownRecord()
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Put(rec); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPutParallel plays a node drain: many VMs at once.
func BenchmarkPutParallel(b *testing.B) {
	s := openStore(b, b.TempDir())
	b.SetParallelism(16)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		rec := shutdownRecord()
		for i := 0; pb.Next(); i++ {
			rec.Name = fmt.Sprintf("vm-%d", i%30)
			if err := s.Put(rec); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkLoad1000(b *testing.B) {
	dir := b.TempDir()
	for i := range 1000 {
		rec := shutdownRecord()
		rec.Name = fmt.Sprintf("vm-%d", i)
		write(b, dir, rec.Domain()+extension, encoded(b, rec))
	}
	s := openStore(b, dir)
	b.ReportAllocs()
	for b.Loop() {
		if loaded := load(b, s); len(loaded.Records) != 1000 {
			b.Fatalf("%d records, %+v", len(loaded.Records), loaded.Quarantined)
		}
	}
}
