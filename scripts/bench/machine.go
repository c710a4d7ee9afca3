package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func cpus() int { return runtime.NumCPU() }

// loadAverage is that of the last minute, -1 where it cannot be read.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	v, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		return -1
	}
	return v
}

// cpuOfAll is the time that all CPUs were not idle since the machine started.
func cpuOfAll() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy int64
	for i, f := range strings.Fields(line) {
		v, err := strconv.ParseInt(f, 10, 64)
		if err == nil && i != 4 && i != 5 && i < 9 { // idle and iowait are not work; guest is in user
			busy += v
		}
	}
	return time.Duration(busy) * 10 * time.Millisecond
}
