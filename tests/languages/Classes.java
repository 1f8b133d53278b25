// Java: Avro's compiler makes the classes of a schema, in a folder.

import java.io.File;
import org.apache.avro.Schema;
import org.apache.avro.compiler.specific.SpecificCompiler;

class Classes {
    public static void main(String[] arguments) throws Exception {
        var schema = new Schema.Parser().parse(new File(arguments[0]));
        new SpecificCompiler(schema).compileToDestination(null, new File(arguments[1]));
    }
}
