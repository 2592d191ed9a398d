// A broker that is not Kafka's code, for `make matrix`: kfake of franz-go, in memory, on one port, until it is ended.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func main() {
	port := flag.Int("port", 9092, "to listen on, at 127.0.0.1")
	flag.Parse()
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1),
		kfake.Ports(*port),
		kfake.GroupMinSessionTimeout(time.Second),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	fmt.Println("bootstrap.servers=" + cluster.ListenAddrs()[0])
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt, syscall.SIGTERM)
	<-ended
}
